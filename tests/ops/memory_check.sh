#!/usr/bin/env bash
# Search for memory errors and undefined behaviour in the CPU kernels: fenced buffers under ASan and
# UBSan for all levels, then under valgrind, if installed, for the levels that it supports (not AVX-512). Search for data
# races in the thread pool under ThreadSanitizer. Needs GCC.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
source=$root/src/linfnet/ops/csrc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build() { # program, flags ...
    local program=$1 name
    shift
    local common=(-std=c++17 -g -ffp-contract=off -I"$source" "$@")
    for name in threads memory scatter sparse_scatter level_plain level_avx2 level_avx512; do
        local flags=()
        [[ $name == level_avx2 ]] && flags=(-mavx2 -mfma -mbmi)
        [[ $name == level_avx512 ]] && flags=(-mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma -mbmi -mpopcnt)
        g++ "${common[@]}" "${flags[@]}" -w -c "$source/$name.cpp" -o "$work/$name.o" &
    done
    wait
    g++ "${common[@]}" "$root/tests/ops/memory_check.cpp" "$work"/*.o -o "$program" -lpthread -ldl
}

pool() { # program, flags ...
    local program=$1
    shift
    g++ -std=c++17 -g -O1 -I"$source" "$@" "$root/tests/ops/threads_check.cpp" "$source"/{threads,memory}.cpp -o "$program" -lpthread -ldl
}

pool "$work/raced" -fsanitize=thread
"$work/raced" without-fork
pool "$work/pooled" -fsanitize=address,undefined -fno-sanitize-recover=all
"$work/pooled"
build "$work/sanitized" -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
"$work/sanitized"
if command -v valgrind > /dev/null; then
    build "$work/plain" -O2
    valgrind --quiet --error-exitcode=1 "$work/plain" AVX2+FMA plain
fi
