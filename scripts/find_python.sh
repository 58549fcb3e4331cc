# Sourced by scripts/run and scripts/test: sets `python` to an interpreter that can set up this checkout.
python=
for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    cat >&2 <<MESSAGE
error: no Python 3.11 or newer was found
  found: $(python3 --version 2>/dev/null || echo "no python3")
  next:  Ubuntu 22.04: sudo apt install python3.11 python3.11-venv
         elsewhere:    sudo apt install python3 python3-venv
         or name one:  PYTHON=/path/to/python3.11 $0
MESSAGE
    exit 2
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    cat >&2 <<MESSAGE
error: $python is Python $version, but has no venv module
  next:  sudo apt install python$version-venv
MESSAGE
    exit 2
fi
