// Files of weights in fp32, in the safetensors format.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "host/base/json.hpp"
#include "tests/support/process.hpp"

namespace chassis::test {

struct Weights {
  std::vector<int64_t> shape;
  std::vector<float> values;
  bool operator==(const Weights&) const = default;
};
using AllWeights = std::map<std::string, Weights>;

inline void write_weights(const std::string& path, const AllWeights& all) {
  Json header = Json::object();
  std::string bytes;
  for (const auto& [name, weights] : all) {
    const size_t begin = bytes.size();
    bytes.append(reinterpret_cast<const char*>(weights.values.data()), weights.values.size() * sizeof(float));
    header[name] = {{"dtype", "F32"}, {"shape", weights.shape}, {"data_offsets", {begin, bytes.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  write_text(path, file + text + bytes);
}

inline AllWeights read_weights(const std::string& path) {
  const std::string file = text_of_file(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  AllWeights all;
  const Json header = Json::parse(file.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = entry.at("data_offsets").at(0), end = entry.at("data_offsets").at(1);
    Weights& weights = all[name];
    weights.shape = entry.at("shape").get<std::vector<int64_t>>();
    weights.values.resize((end - begin) / sizeof(float));
    std::memcpy(weights.values.data(), file.data() + 8 + length + begin, end - begin);
  }
  return all;
}

}  // namespace chassis::test
