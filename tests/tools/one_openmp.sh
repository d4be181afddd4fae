#!/bin/sh
# one_openmp.sh PROGRAM TORCH_DIR: the program loads exactly one OpenMP run-time library, the one beside LibTorch. Two of
# them would start two thread pools.
found=$(ldd "$1" | awk '/lib(gomp|omp|iomp5)[.-]/ {print $3}')
case $found in
  "$2"/lib/libgomp*) [ "$(echo "$found" | wc -l)" = 1 ] && exit 0 ;;
esac
echo "expected one OpenMP library, from $2/lib; ldd $1 says: $found"
exit 1
