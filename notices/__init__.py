"""What the portable program consists of, whose it is, and under which terms: one folder per component.

`component.toml` in a folder says what the component is and which files of a build are its own; the files beside it are
its licence texts as its authors wrote them. `components` reads them, `collect` and `compilation` list what a build holds
and find an owner for each part, `render` writes the notices that the program carries.
"""
