// Prints the GFLOP/s of LibTorch's matrix product, fp32 or bf16, on the shapes of tools/bench: the limit for all peers
// on this machine.
//   chassis-sgemm [bf16]
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  const at::ScalarType dtype = argc > 1 && std::strcmp(argv[1], "bf16") == 0 ? at::kBFloat16 : at::kFloat;
  const at::Tensor x = at::rand({2048, 384}).to(dtype), w = at::rand({384, 1024}).to(dtype);
  double best = 0.0;
  for (int round = 0; round < 20; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) at::mm(x, w);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 10 * 2.0 * 2048 * 384 * 1024 / seconds / 1e9);
  }
  std::printf("%.1f\n", best);
}
