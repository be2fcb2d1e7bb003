#!/usr/bin/env bash
# Packs the tests and the command line for a machine with a GPU that cannot build them:
#
#   tools/cuda_bundle.sh [BUILD_FOLDER]      default: build/cuda, made if it is not there
#
# makes build/cuda_bundle/ with a compressed archive (stripped programs and the shared libraries they need that
# are not part of the system) and `run`, which unpacks it beside itself the first time:
#
#   build/cuda_bundle/run ebb_tests --only-cuda
#   build/cuda_bundle/run ebb info
#
# The other machine needs a C library at least as new as this one's, the driver, cuBLASLt, NVRTC and cuDNN.
set -euo pipefail
cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.."

build=${1:-build/cuda}
bundle=build/cuda_bundle
[[ -f $build/CMakeCache.txt ]] ||
  cmake -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DEBB_CUDA=ON -DEBB_MARCH=x86-64-v3 >/dev/null
cmake --build "$build" --target ebb_tests ebb_cli

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/lib"
for program in tests/ebb_tests ebb; do
  strip -o "$stage/$(basename "$program")" "$build/$program"
done
# Everything but the C and C++ libraries, which every system has and which must fit its own loader.
system='^(linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)[-.]'
ldd "$stage/ebb_tests" "$stage/ebb" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u |
  while read -r name path; do
    [[ $name =~ $system ]] || strip --strip-unneeded -o "$stage/lib/$name" "$(readlink -f "$path")"
  done

rm -rf "$bundle"
mkdir -p "$bundle"
tar -C "$stage" -cf - . | xz -T0 -6 >"$bundle/programs.tar.xz"
cat >"$bundle/run" <<'RUN'
#!/usr/bin/env bash
# Starts a program of the bundle: run PROGRAM [ARGUMENT ...]
set -euo pipefail
here=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
programs=$here/programs
if [[ ! -d $programs || $here/programs.tar.xz -nt $programs ]]; then
  rm -rf "$programs"
  mkdir -p "$programs"
  tar -C "$programs" -xJf "$here/programs.tar.xz"
  touch "$programs"
fi
# CUDA's libraries, where the toolkit has them and where Python packages do.
paths=$programs/lib
for folder in /usr/local/cuda/lib64 /usr/local/cuda/lib; do [[ ! -d $folder ]] || paths+=:$folder; done
packages=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null || true)
for folder in "$packages"/nvidia/*/lib; do [[ ! -d $folder ]] || paths+=:$folder; done
export LD_LIBRARY_PATH=$paths${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$programs/$1" "${@:2}"
RUN
chmod +x "$bundle/run"
du -h "$bundle"/* | cat
