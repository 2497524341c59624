#!/bin/sh
# Makes .venv ready, and returns at once when it is; or says in one sentence what this machine lacks.
# From the environment:
#   PYTHON     the Python to build .venv with (by default the first on the path that is new enough)
#   PIP_ARGS   more arguments for `pip install`
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON-}
here=$(pwd -P)
venv=.venv
ready=$venv/.ppedu-ready # what was installed, for which folder, with which Python
begun=$venv/.ppedu-begun # is there while pip works, and stays if it is interrupted
wanted="$here $(cat pyproject.toml constraints.txt | cksum)"
was='' was_python=''

fail() {
    echo "ppedu: $*" >&2
    exit 1
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

version() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null || true; }

same_python() { [ -z "$PYTHON" ] || [ "$PYTHON" = "$was_python" ]; }

# A .venv without pip is half made, or its Python has been replaced by another version.
works() { [ -x $venv/bin/python ] && $venv/bin/python -c 'import pip' 2>/dev/null; }

if [ -f $ready ]; then
    { read -r was && read -r was_python; } <$ready || was=''
    if [ "$was" = "$wanted" ] && same_python && works; then
        exit 0
    fi
fi

remedy='install it (Debian, Ubuntu: sudo apt install python3 python3-venv; macOS: brew install python), or name one'
remedy="$remedy that is elsewhere: make ... PYTHON=/path/to/python3"
if [ -n "$PYTHON" ]; then
    command -v "$PYTHON" >/dev/null || fail "there is no $PYTHON here, and ppedu needs Python 3.10 or newer: $remedy"
    found=$(version "$PYTHON")
    [ -n "$found" ] || fail "$PYTHON does not start, and ppedu needs Python 3.10 or newer: $remedy"
    new_enough "$PYTHON" || fail "$PYTHON is Python $found, and ppedu needs 3.10 or newer: $remedy"
    python=$PYTHON
else
    python=''
    for name in python3 python3.13 python3.12 python3.14 python3.11 python3.10 python; do
        if new_enough "$name"; then
            python=$name
            break
        fi
    done
    found=$(version "${python:-python3}")
    [ -n "$python" ] || fail "ppedu needs Python 3.10 or newer, and here is ${found:-none}: $remedy"
fi

# Keep what is there where that is safe: an update then takes seconds, and a .venv made by hand is used as it is.
keep=no
if [ -d $venv ] && [ ! -e $begun ] && works && new_enough $venv/bin/python && same_python &&
    grep -qF "$here/$venv" $venv/bin/activate 2>/dev/null; then # scripts in a moved .venv point to the old place
    keep=yes
fi

if [ $keep = yes ]; then
    rm -f $ready
    echo "Bringing .venv up to date ..."
else
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python ($found) comes without its venv module: install it (Debian, Ubuntu: sudo apt install" \
            "python${found%.*}-venv), or name another Python: make ... PYTHON=/path/to/python3"
    was_python=''
    echo "Setting up .venv with Python $found: once, a few minutes, most of them for torch ..."
    if [ -e $venv ]; then # moved away first, so that no interrupt can leave half of it under its name
        rm -rf $venv.old
        mv $venv $venv.old
    fi
    rm -rf $venv.old
    mkdir $venv
    : >$begun
    "$python" -m venv $venv || fail "$python could not make .venv, for the reason above: make it yourself" \
        "($python -m venv .venv), or name another Python: make ... PYTHON=/path/to/python3"
    works || fail "the new .venv has no pip: install it for $python (Debian, Ubuntu: sudo apt install python3-pip" \
        "python${found%.*}-venv), then run make again"
fi

trap 'exit 130' INT TERM HUP
: >$begun
# shellcheck disable=SC2086 # PIP_ARGS are several words
if ! $venv/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[lab,test,dev]' \
    ${PIP_ARGS-}; then
    rm -f $begun # pip ended by itself, so what it had installed is whole
    fail "pip could not install what ppedu needs, for the reason above (no network? a full disk? no build of torch" \
        "for Python $(version $venv/bin/python)? then name another: make ... PYTHON=python3.12); run make again to go on"
fi
printf '%s\n%s\n' "$wanted" "${PYTHON:-$was_python}" >$begun
mv $begun $ready
echo "Ready."
