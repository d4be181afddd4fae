// Elements per second of bnb4's loops on all cores: chassis-quant [MILLION_ELEMENTS [THREADS]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "plugins/quant/bnb4/loops.hpp"

namespace {

// The best of several rounds, in Gelem/s; `body` handles elements [begin, begin + count).
double rate(int64_t elements, int64_t threads, const std::function<void(int64_t begin, int64_t count)>& body) {
  constexpr int kRounds = 9;
  const int64_t share = elements / threads / 4096 * 4096;
  double best = 0.0;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> all;
    for (int64_t t = 1; t < threads; ++t) all.emplace_back([&, t] { body(t * share, share); });
    body(0, share);
    for (std::thread& thread : all) thread.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(share * threads) / seconds.count() / 1e9);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace bnb4;
  const int64_t elements = (argc > 1 ? std::atoll(argv[1]) : 64) * 1'000'000;
  const int64_t threads = argc > 2 ? std::atoll(argv[2]) : std::thread::hardware_concurrency();
  constexpr int64_t kBlock = 64;
  const auto n = static_cast<size_t>(elements);
  std::vector<float> values(n);
  std::mt19937 generator(1);
  for (float& value : values) value = std::normal_distribution<float>()(generator);
  std::vector<uint8_t> codes(n / 2 + 1);
  std::vector<float> absmax(n / kBlock + 1);
  std::vector<uint16_t> halves(n);
  std::printf("%ld million elements in blocks of %ld, %ld threads\n", elements / 1'000'000, kBlock, threads);
  for (const Code code : {Code::kNf4, Code::kFp4}) {
    const char* const name = code == Code::kNf4 ? "nf4" : "fp4";
    const float* const table = values_of(code).data();
    const auto print = [&](const char* what, double gigas) {
      std::printf("%s %-22s %6.2f Gelem/s\n", name, what, gigas);
    };
    print("quantize f32", rate(elements, threads, [&](int64_t at, int64_t count) {
            loops().quantize_f32(code, values.data() + at, count, kBlock, codes.data() + at / 2,
                                 absmax.data() + at / kBlock);
          }));
    print("dequantize to bf16", rate(elements, threads, [&](int64_t at, int64_t count) {
            loops().dequantize_bf16(table, codes.data() + at / 2, absmax.data() + at / kBlock, count, kBlock,
                                    halves.data() + at);
          }));
    // As the product uses it: panels of 1 MiB that stay in the cache.
    print("dequantize panels", rate(elements, threads, [&](int64_t at, int64_t count) {
            constexpr int64_t kPanel = 1 << 19;
            for (int64_t done = 0; done < count; done += kPanel)
              loops().dequantize_bf16(table, codes.data() + (at + done) / 2, absmax.data() + (at + done) / kBlock,
                                      std::min(kPanel, count - done), kBlock, halves.data() + at);
          }));
    print("dequantize to f32", rate(elements, threads, [&](int64_t at, int64_t count) {
            loops().dequantize_f32(table, codes.data() + at / 2, absmax.data() + at / kBlock, count, kBlock,
                                   values.data() + at);
          }));
  }
  return 0;
}
