// A model whose weights are stored in 4 bits, as bitsandbytes' files have it: read from a checkpoint of a run, changed,
// and written.
#pragma once

#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/regress/whole_tensors.hpp"
#include "tests/support/process.hpp"

namespace chassis::test {

struct StoredTensor {
  std::string dtype;  // as in safetensors: "U8"
  std::vector<int64_t> shape;
  std::string bytes;

  template <typename T>
  std::vector<T> as() const {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }
  template <typename T>
  void set(size_t i, T value) {
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof value);
  }
};

class StoredModel {
 public:
  static constexpr const char* kState = ".quant_state.bitsandbytes__nf4";
  std::map<std::string, StoredTensor> tensors;
  nlohmann::ordered_json config;

  // nf4 in blocks of 64. `base`: a model directory with the config.json.
  StoredModel(const std::string& checkpoint, const std::string& base, bool is_nested) {
    LoadedPlugins plugins;
    for (const auto& [name, tensor] : whole_tensors(checkpoint, plugins)) {
      if (name.find("lora_") != std::string::npos) continue;
      StoredTensor& t = tensors[name];
      t.dtype = tensor.dtype() == Dtype::u8 ? "U8" : "F32";
      if (size_bytes(tensor.dtype()) != (t.dtype == "U8" ? 1 : 4)) throw std::runtime_error(name);
      t.shape = tensor.sizes();
      t.bytes.assign(tensor.data_as<char>(), tensor.num_bytes());
    }
    config = nlohmann::ordered_json::parse(text_of_file(base + "/config.json"));
    config["quantization_config"] = {{"load_in_4bit", true},
                                     {"quant_method", "bitsandbytes"},
                                     {"bnb_4bit_quant_type", "nf4"},
                                     {"bnb_4bit_use_double_quant", is_nested}};
    for (const std::string& name : weights()) {
      nlohmann::ordered_json state = {
          {"quant_type", "nf4"}, {"blocksize", 64}, {"dtype", "float32"}, {"shape", shape_of(name)}};
      if (is_nested) {
        state["nested_blocksize"] = 256;
        state["nested_dtype"] = "float32";
        state["nested_offset"] = tensors.at(name + ".nested_offset").as<float>()[0];
        tensors.erase(name + ".nested_offset");
      }
      set_state(name, state.dump());
    }
  }

  std::vector<std::string> weights() const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors)
      if (name.ends_with("proj.weight")) names.push_back(name);
    return names;
  }
  nlohmann::ordered_json state(const std::string& weight) const {
    return nlohmann::ordered_json::parse(tensors.at(weight + kState).bytes);
  }
  void set_state(const std::string& weight, const std::string& text) {
    tensors[weight + kState] = {"U8", {static_cast<int64_t>(text.size())}, text};
  }

  // The same model in fp32, by the definition of the code.
  StoredModel dequantized() const {
    constexpr std::array<float, 16> kNf4 = {-1.0f,
                                            -0.6961928009986877f,
                                            -0.5250730514526367f,
                                            -0.39491748809814453f,
                                            -0.28444138169288635f,
                                            -0.18477343022823334f,
                                            -0.09105003625154495f,
                                            0.0f,
                                            0.07958029955625534f,
                                            0.16093020141124725f,
                                            0.24611230194568634f,
                                            0.33791524171829224f,
                                            0.44070982933044434f,
                                            0.5626170039176941f,
                                            0.7229568362236023f,
                                            1.0f};
    StoredModel out = *this;
    out.config.erase("quantization_config");
    for (const std::string& name : weights()) {
      const std::vector<int64_t> shape = shape_of(name);
      const auto codes = tensors.at(name).as<uint8_t>();
      std::vector<float> absmax;
      if (tensors.contains(name + ".nested_absmax")) {
        const auto map = tensors.at(name + ".nested_quant_map").as<float>();
        const auto outer = tensors.at(name + ".nested_absmax").as<float>();
        const float offset = state(name).at("nested_offset");
        for (const uint8_t code : tensors.at(name + ".absmax").as<uint8_t>()) {
          const float product = map[code] * outer[absmax.size() / 256];
          absmax.push_back(product + offset);
        }
      } else {
        absmax = tensors.at(name + ".absmax").as<float>();
      }
      std::vector<float> values(static_cast<size_t>(shape[0] * shape[1]));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = kNf4[i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15] * absmax[i / 64];
      std::erase_if(out.tensors, [&](const auto& entry) { return entry.first.starts_with(name); });
      out.tensors[name] = {"F32", shape, std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4)};
    }
    return out;
  }

  void write(const std::string& directory) const {
    std::filesystem::create_directories(directory);
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      header[name] = {{"dtype", tensor.dtype},
                      {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    std::string size(8, '\0');
    const uint64_t num_bytes = text.size();
    std::memcpy(size.data(), &num_bytes, 8);
    write_text(directory + "/model.safetensors", size + text + data);
    write_text(directory + "/config.json", config.dump());
  }

 private:
  std::vector<int64_t> shape_of(const std::string& weight) const {
    const auto size = [&](const char* key) { return config.at(key).get<int64_t>(); };
    const int64_t hidden = size("hidden_size"), intermediate = size("intermediate_size");
    const int64_t head = hidden / size("num_attention_heads");
    if (weight.ends_with("gate_proj.weight") || weight.ends_with("up_proj.weight")) return {intermediate, hidden};
    if (weight.ends_with("down_proj.weight")) return {hidden, intermediate};
    if (weight.ends_with("q_proj.weight") || weight.ends_with("o_proj.weight")) return {hidden, hidden};
    return {head * size("num_key_value_heads"), hidden};
  }
};

}  // namespace chassis::test
