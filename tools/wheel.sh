#!/bin/sh
# wheel.sh REQUIREMENT KEPT [INCLUDED]
# Prints the path of the requirement's wheel, compiled with the CMAKE_ARGS of the environment; CMake includes the file
# INCLUDED after each project(). KEPT has a folder for each requirement, switches, content of that file, Python,
# compiler and processor: pip's own cache compares none but the first, and gives everybody the wheel that was compiled
# once. The newest four are kept.
set -eu

requirement=$1 kept=$2 included=${3-}

compiled_for() {
    echo "$requirement ${CMAKE_ARGS-} ${CFLAGS-} ${CXXFLAGS-}"
    cat "${included:-/dev/null}"
    python3 -VV
    "${CXX:-c++}" --version
    uname -m
    grep -m 1 -E '^(flags|Features)' /proc/cpuinfo 2>/dev/null || true
}

hashed() {
    python3 -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:24])'
}

described=$(compiled_for)
folder=$kept/$(echo "$described" | hashed)
if [ ! -d "$folder" ]; then
    mkdir -p "$kept"
    making=$(mktemp -d "$kept/making.XXXXXX")
    trap 'rm -rf "$making"' EXIT
    if [ -n "$included" ]; then
        path=$(cd "$(dirname "$included")" && pwd)/$(basename "$included")
        export CMAKE_ARGS="-DCMAKE_PROJECT_INCLUDE='$path' ${CMAKE_ARGS-}"
    fi
    python3 -m pip wheel --no-cache-dir --no-deps --no-binary "${requirement%%=*}" -w "$making" "$requirement" >&2
    mv "$making" "$folder"
    ls -dt "$kept"/*/ | tail -n +5 | while read -r old; do rm -rf "$old"; done
fi
echo "$folder"/*.whl
