// Converts standard input to standard output, for tests/interop/bnb4.py:
//   bnb4_codes quantize nf4|fp4 BLOCK f32|bf16|f16         values → codes, absmax
//   bnb4_codes dequantize nf4|fp4 BLOCK f32|bf16|f16 N     codes, absmax → values
//   bnb4_codes nest                                        absmax → offset, nested absmax, codes
//   bnb4_codes state                                       quant_state → the same, written again
#include <cstring>
#include <exception>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "plugins/quant/bnb4/loops.hpp"
#include "plugins/quant/bnb4/nested.hpp"
#include "plugins/quant/bnb4/quant_state.hpp"

namespace {

template <typename T>
void write(const std::vector<T>& values) {
  std::cout.write(reinterpret_cast<const char*>(values.data()),
                  static_cast<std::streamsize>(values.size() * sizeof(T)));
}

template <typename T>
std::vector<T> values_in(const std::string& bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
  return out;
}

int run(const std::vector<std::string>& arguments) {
  using namespace bnb4;
  const std::string in((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  if (arguments[0] == "state") {
    std::cout << quant_state_text(parse_quant_state(in));
    return 0;
  }
  if (arguments[0] == "nest") {
    const auto absmax = values_in<float>(in);
    const auto n = static_cast<int64_t>(absmax.size());
    std::vector<float> offset = {mean(absmax.data(), n)}, nested((absmax.size() + 255) / 256);
    std::vector<uint8_t> codes(absmax.size());
    quantize_absmax(absmax.data(), n, kDynamicMap.data(), offset[0], codes.data(), nested.data());
    write(offset), write(nested), write(codes);
    return 0;
  }
  const Code code = arguments[1] == "nf4" ? Code::kNf4 : Code::kFp4;
  const int64_t block = std::stoll(arguments[2]);
  const std::string& dtype = arguments[3];
  if (arguments[0] == "quantize") {
    const auto n = static_cast<int64_t>(in.size() / (dtype == "f32" ? 4 : 2));
    std::vector<uint8_t> codes(static_cast<size_t>((n + 1) / 2));
    std::vector<float> absmax(static_cast<size_t>((n + block - 1) / block));
    const auto f32 = values_in<float>(in);
    const auto half = values_in<uint16_t>(in);
    const int64_t bad = dtype == "f32" ? loops().quantize_f32(code, f32.data(), n, block, codes.data(), absmax.data())
                        : dtype == "bf16"
                            ? loops().quantize_bf16(code, half.data(), n, block, codes.data(), absmax.data())
                            : loops().quantize_f16(code, half.data(), n, block, codes.data(), absmax.data());
    if (bad >= 0) return 3;
    write(codes), write(absmax);
    return 0;
  }
  const int64_t n = std::stoll(arguments.at(4));
  const auto num_codes = static_cast<size_t>((n + 1) / 2);
  const auto codes = values_in<uint8_t>(in.substr(0, num_codes));
  const auto absmax = values_in<float>(in.substr(num_codes));
  const float* const table = values_of(code).data();
  std::vector<float> f32(static_cast<size_t>(n));
  std::vector<uint16_t> half(static_cast<size_t>(n));
  if (dtype == "f32") {
    loops().dequantize_f32(table, codes.data(), absmax.data(), n, block, f32.data());
    write(f32);
  } else {
    (dtype == "bf16" ? loops().dequantize_bf16 : loops().dequantize_f16)(table, codes.data(), absmax.data(), n, block,
                                                                         half.data());
    write(half);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
