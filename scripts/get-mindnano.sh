#!/bin/sh
# Fetches mindnano-infer from a release, proves that it arrived whole, and runs its check.
#
#   sh get-mindnano.sh BASE_URL [FOLDER]
#
# BASE_URL is the folder of a release: it holds SHA256SUMS and mindnano-infer. FOLDER is where the program goes (default:
# the current one). What this machine lacks is said before anything is fetched: a program that was linked for another
# processor or a newer C library cannot say it itself.
#
# The sums come from the same place as the program. They show that it arrived whole, not who made it.
#
# Exit codes: 2 usage, 3 this system is not supported, 5 cannot write, 6 cannot download, 8 wrong checksum; otherwise
# that of `mindnano-infer --check`.
set -eu

PROGRAM=mindnano-infer
GLIBC_MAJOR=2
GLIBC_MINOR=28

stop() {
    code=$1
    shift
    printf 'error: %s\n' "$*" >&2
    exit "$code"
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# Sets machine and elf_machine, the number that an ELF file gives the processor.
check_processor() {
    [ "$(uname -s)" = Linux ] || stop 3 "this system is $(uname -s); mindnano-infer runs on Linux"
    machine=$(uname -m)
    case $machine in
        aarch64 | arm64) machine=aarch64 elf_machine=183 loader=/lib/ld-linux-aarch64.so.1 ;;
        x86_64 | amd64) machine=x86_64 elf_machine=62 loader=/lib64/ld-linux-x86-64.so.2 ;;
        *) stop 3 "this processor is $machine; mindnano-infer runs on aarch64 (RK3588) and x86_64" ;;
    esac
    if has getconf && [ "$(getconf LONG_BIT 2>/dev/null || echo 64)" = 32 ]; then
        stop 3 "this system is 32-bit on a 64-bit processor; install a 64-bit system (arm64 or amd64)"
    fi
}

glibc_version() {
    if has getconf && version=$(getconf GNU_LIBC_VERSION 2>/dev/null); then
        printf '%s\n' "${version#glibc }"
    elif has ldd; then
        ldd --version 2>&1 | sed -n '1s/.* \([0-9][0-9]*\.[0-9][0-9]*\).*/\1/p'
    fi
}

check_c_library() {
    # A system may have both; the one that its own programs use counts.
    if has ldd && ldd --version 2>&1 | grep -qi musl; then
        stop 3 "this system's C library is musl; mindnano-infer needs glibc $GLIBC_MAJOR.$GLIBC_MINOR or newer, as in Debian, Ubuntu or Armbian"
    fi
    version=$(glibc_version)
    case $version in
        [0-9]*.[0-9]*) ;;
        *) stop 3 "no glibc is found here; mindnano-infer needs glibc $GLIBC_MAJOR.$GLIBC_MINOR or newer, as in Debian, Ubuntu or Armbian" ;;
    esac
    major=${version%%.*}
    minor=${version#*.}
    minor=${minor%%[!0-9]*}
    if [ "$major" -lt $GLIBC_MAJOR ] || { [ "$major" -eq $GLIBC_MAJOR ] && [ "$minor" -lt $GLIBC_MINOR ]; }; then
        stop 3 "this system's glibc is $version; mindnano-infer needs $GLIBC_MAJOR.$GLIBC_MINOR or newer: upgrade to Debian 10, Ubuntu 20.04 or later"
    fi
    [ -e "$loader" ] ||
        stop 3 "this system has no $loader, which programs of other distributions need; on NixOS install nix-ld"
}

check_tools() {
    if has curl; then
        fetcher=curl
    elif has wget; then
        fetcher=wget
    else
        stop 3 "neither curl nor wget is installed; install one of them"
    fi
    has sha256sum || stop 3 "sha256sum is not installed; install coreutils"
}

# fetch URL FILE
fetch() {
    case $fetcher in
        curl) curl -fL --retry 3 --connect-timeout 20 --proto "=$protocols" -o "$2" "$1" ;;
        wget) wget -O "$2" "$1" ;;
    esac || stop 6 "$1 cannot be downloaded; check the address and the network, and run this again"
}

main() {
    if [ $# -lt 1 ] || [ $# -gt 2 ]; then
        stop 2 "expected: sh get-mindnano.sh BASE_URL [FOLDER]"
    fi
    base=${1%/}
    folder=${2:-.}
    case $base in
        https://?*) protocols=https ;; # nor does a redirect lead away from it
        # Whoever is on the way could put another program into an answer, and its sum into the list.
        http://*@*) stop 2 "$base is not protected; expected https://..." ;;
        http://127.0.0.1[:/]* | http://localhost[:/]*) protocols=http,https ;;
        http://?*) stop 2 "$base is not protected; expected https://..." ;;
        *) stop 2 "$base is no address; expected https://... of a folder with SHA256SUMS and $PROGRAM" ;;
    esac
    check_processor
    check_c_library
    check_tools
    mkdir -p "$folder" 2>/dev/null && [ -w "$folder" ] || stop 5 "$folder cannot be written to; name another folder"
    if [ -d "$folder/$PROGRAM" ]; then
        stop 5 "$folder/$PROGRAM is a folder; name another one"
    fi

    scratch=$(mktemp -d "$folder/.get-mindnano.XXXXXX") || stop 5 "$folder cannot be written to; name another folder"
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP

    fetch "$base/SHA256SUMS" "$scratch/SHA256SUMS"
    expected=$(sed -n "s/^\([0-9a-f]\{64\}\) [ *]$PROGRAM\$/\1/p" "$scratch/SHA256SUMS")
    [ ${#expected} -eq 64 ] || stop 8 "$base/SHA256SUMS does not name $PROGRAM exactly once; take another source"
    fetch "$base/$PROGRAM" "$scratch/$PROGRAM"
    found=$(sha256sum <"$scratch/$PROGRAM")
    found=${found%% *}
    [ "$found" = "$expected" ] ||
        stop 8 "$PROGRAM has SHA-256 $found, but SHA256SUMS says $expected; run this again, or take another source"

    built_for=$(od -A n -t u1 -j 18 -N 1 "$scratch/$PROGRAM" | tr -d ' \n')
    [ "$built_for" = "$elf_machine" ] ||
        stop 3 "$base/$PROGRAM is not built for this processor ($machine); take the release for $machine"
    chmod 755 "$scratch/$PROGRAM"
    mv -f "$scratch/$PROGRAM" "$folder/$PROGRAM" || stop 5 "$folder/$PROGRAM cannot be written; name another folder"
    rm -rf "$scratch"
    printf '%s is whole and ready: %s\n' "$PROGRAM" "$folder/$PROGRAM" >&2
    case $folder in
        /*) ;;
        *) folder=./$folder ;;
    esac
    code=0
    "$folder/$PROGRAM" --check || code=$?
    [ "$code" -ne 126 ] || stop 5 "$folder/$PROGRAM may not be run; is the folder mounted noexec? name another folder"
    exit "$code"
}

# The last line, so that a script that arrived in part does nothing.
main "$@"
