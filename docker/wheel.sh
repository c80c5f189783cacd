#!/bin/sh
# wheel.sh REQUIREMENT KEPT [FILE...]
# Prints the path of the requirement's wheel, compiled with the CMAKE_ARGS of the environment. KEPT has a folder for
# each requirement, switches, contents of the FILEs, Python, compiler and processor: pip's own cache compares none
# but the first, and gives everybody the wheel that was compiled once.
set -eu

requirement=$1 kept=$2
shift 2

compiled_for() {
    echo "$requirement ${CMAKE_ARGS-}"
    cat "$@" /dev/null
    python3 -VV
    "${CXX:-c++}" --version
    uname -m
    grep -m 1 -E '^(flags|Features)' /proc/cpuinfo || true
}

described=$(compiled_for "$@")
folder=$kept/$(echo "$described" | sha256sum | cut -c 1-24)
if [ ! -d "$folder" ]; then
    mkdir -p "$kept"
    making=$(mktemp -d "$kept/making.XXXXXX")
    trap 'rm -rf "$making"' EXIT
    python3 -m pip wheel --no-cache-dir --no-deps --no-binary "${requirement%%=*}" -w "$making" "$requirement" >&2
    mv "$making" "$folder"
fi
echo "$folder"/*.whl
