// Prints the GFLOP/s of LibTorch's best matrix product, fp32 or bf16, of a few shapes like those of tools/bench, or the
// GB/s, read and written, of its copy: the limits for all peers on this machine.
//   chassis-sgemm [bf16|copy]
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

namespace {

// Of the best round; a round of fewer calls would measure the clock.
template <typename Call>
double best_seconds(Call&& call) {
  constexpr int kRepeats = 4;
  double best = 1e9;
  for (int round = 0; round < 12; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kRepeats; ++i) call();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count() / kRepeats);
  }
  return best;
}

int print_copy() {
  constexpr int64_t kFloats = 32 << 20;  // 128 MiB, more than most caches
  const at::Tensor from = at::ones({kFloats}), to = at::ones({kFloats});
  std::printf("%.2f\n", 8.0 * kFloats / best_seconds([&] { to.copy_(from); }) / 1e9);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "copy") == 0) return print_copy();
  const at::ScalarType dtype = argc > 1 && std::strcmp(argv[1], "bf16") == 0 ? at::kBFloat16 : at::kFloat;
  constexpr int kShapes[][3] = {{2048, 384, 1024}, {512, 768, 2048}, {1024, 1024, 1024}, {2048, 2048, 2048}};
  double best = 0.0;
  for (const auto& [m, k, n] : kShapes) {
    const at::Tensor x = at::rand({m, k}).to(dtype), w = at::rand({k, n}).to(dtype);
    best = std::max(best, 2.0 * m * k * n / best_seconds([&] { at::mm(x, w); }) / 1e9);
  }
  std::printf("%.1f\n", best);
}
