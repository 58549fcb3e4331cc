"""What the portable program consists of, whose it is, and under which terms: one folder per component.

`component.toml` in a folder says what the component is and which parts of a build are its own; the files beside it are
its licence texts as its authors wrote them. `components` reads them. `linked` and `compilation` find out what a build
holds, `collect` finds an owner for each part, `render` writes the notices that the program carries.
"""
