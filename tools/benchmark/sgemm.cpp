// Prints the GFLOP/s of LibTorch's best matrix product, fp32 or bf16, of a few shapes like those of tools/bench: the
// limit for all peers on this machine.
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
  constexpr int kShapes[][3] = {{2048, 384, 1024}, {512, 768, 2048}, {1024, 1024, 1024}, {2048, 2048, 2048}};
  constexpr int kRepeats = 4;
  double best = 0.0;
  for (const auto& [m, k, n] : kShapes) {
    const at::Tensor x = at::rand({m, k}).to(dtype), w = at::rand({k, n}).to(dtype);
    for (int round = 0; round < 12; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kRepeats; ++i) at::mm(x, w);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      best = std::max(best, kRepeats * 2.0 * m * k * n / seconds / 1e9);
    }
  }
  std::printf("%.1f\n", best);
}
