// Writes the small part of the formats of torch.save and DeepSpeed that ZeRO checkpoints use, to test their reader.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plugins/format/zero_import/checkpoint.hpp"
#include "plugins/format/zero_import/zip.hpp"
#include "tests/support/memory_source.hpp"

namespace zero_import::testing {

template <typename T>
std::string little(T number) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &number, sizeof number);
  return out;
}

// ---- ZIP

struct Stored {
  std::string name, bytes;
};

// Writes a ZIP file as torch does: the bytes of members at multiples of 64, sizes in the directory.
inline std::string zip_of(const std::vector<Stored>& members) {
  std::string file, directory;
  for (const Stored& m : members) {
    const auto local = static_cast<uint32_t>(file.size());
    const auto name_bytes = static_cast<uint16_t>(m.name.size());
    const auto padding = static_cast<uint16_t>(4 + (64 - (file.size() + 30 + m.name.size() + 4) % 64) % 64);
    const uint32_t crc = crc32(m.bytes), size = static_cast<uint32_t>(m.bytes.size());
    file += "PK\3\4" + std::string(2, '\0') + little<uint16_t>(0x808) + std::string(6, '\0') + std::string(12, '\0') +
            little(name_bytes) + little(padding) + m.name + "FB" +
            little<uint16_t>(static_cast<uint16_t>(padding - 4)) + std::string(padding - 4u, 'Z') + m.bytes;
    directory += "PK\1\2" + std::string(4, '\0') + little<uint16_t>(0x808) + std::string(6, '\0') + little(crc) +
                 little(size) + little(size) + little(name_bytes) + std::string(12, '\0') + little(local) + m.name;
  }
  const auto count = static_cast<uint16_t>(members.size());
  return file + directory + "PK\5\6" + std::string(4, '\0') + little(count) + little(count) +
         little(static_cast<uint32_t>(directory.size())) + little(static_cast<uint32_t>(file.size())) +
         std::string(2, '\0');
}

// ---- Pickles, as bytes: each function is an expression that leaves one value on the stack.

inline std::string text(std::string_view t) { return "X" + little(static_cast<uint32_t>(t.size())) + std::string(t); }
inline std::string number(int32_t n) { return "J" + little(n); }
inline std::string real(double d) {
  std::string bytes = little(d);
  std::reverse(bytes.begin(), bytes.end());
  return "G" + bytes;
}
inline std::string global(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
inline std::string tuple(const std::vector<std::string>& items) {
  std::string out = "(";
  for (const std::string& item : items) out += item;
  return out + "t";
}
inline std::string list(const std::vector<std::string>& items) {
  std::string out = "](";
  for (const std::string& item : items) out += item;
  return out + "e";
}
inline std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string out = "}(";
  for (const auto& [key, value] : items) out += key + value;
  return out + "u";
}
inline std::string call(const std::string& function, const std::string& arguments) {
  return function + arguments + "R";
}
inline std::string ordered_dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string out = call(global("collections", "OrderedDict"), ")") + "(";
  for (const auto& [key, value] : items) out += key + value;
  return out + "u";
}
inline std::string pickle_of(const std::string& value) { return "\x80\x02" + value + "."; }

// ---- Files of torch.save

class TorchWriter {
 public:
  // A tensor with its own storage.
  std::string tensor(const std::vector<int64_t>& shape, const std::vector<float>& values) {
    std::string bytes(values.size() * sizeof(float), '\0');
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return tensor("FloatStorage", shape, static_cast<int32_t>(values.size()), std::move(bytes));
  }
  std::string tensor(std::string_view storage_type, const std::vector<int64_t>& shape, int32_t num_elements,
                     std::string bytes) {
    const std::string key = std::to_string(storages_.size());
    storages_.push_back(std::move(bytes));
    const std::string storage =
        tuple({text("storage"), global("torch", storage_type), text(key), text("cpu"), number(num_elements)}) + "Q";
    std::vector<std::string> sizes, strides(shape.size());
    int64_t stride = 1;
    for (size_t dim = shape.size(); dim-- > 0; stride *= shape[dim])
      strides[dim] = number(static_cast<int32_t>(stride));
    for (const int64_t size : shape) sizes.push_back(number(static_cast<int32_t>(size)));
    return call(global("torch._utils", "_rebuild_tensor_v2"),
                tuple({storage, number(0), tuple(sizes), tuple(strides), "\x89", ordered_dict({})}));
  }
  std::string file(const std::string& value) const {
    std::vector<Stored> members = {{"archive/data.pkl", pickle_of(value)}, {"archive/byteorder", "little"}};
    for (size_t i = 0; i < storages_.size(); ++i)
      members.push_back({"archive/data/" + std::to_string(i), storages_[i]});
    members.push_back({"archive/version", "3\n"});
    return zip_of(members);
  }

 private:
  std::vector<std::string> storages_;
};

inline std::string size_of(const std::vector<int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const int64_t size : shape) sizes.push_back(number(static_cast<int32_t>(size)));
  return call(global("torch", "Size"), tuple({tuple(sizes)}));
}

// ---- Checkpoints

using Files = chassis::testing::Files;
struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values() const {  // they depend on name and position
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    const auto first = static_cast<float>(std::hash<std::string>()(name) % 1000);
    std::vector<float> out;
    out.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) out.push_back(first + 0.001f * static_cast<float>(i));
    return out;
  }
};
using Groups = std::vector<std::vector<Parameter>>;

inline std::vector<float> slice(const std::vector<float>& values, size_t begin, size_t end, size_t size) {
  std::vector<float> out;
  out.reserve(size);
  for (size_t i = begin; i < begin + size; ++i) out.push_back(i < end && i < values.size() ? values[i] : -777.0f);
  return out;
}

// Stages 1 and 2 save masters without padding, and the optimizer's states with it.
inline std::vector<float> without_padding(std::vector<float> partition) {
  std::erase(partition, -777.0f);
  return partition;
}

// Each rank's flat vectors, one for each group (stages 1, 2) or sub-group (stage 3: cut after sub_group_elements).
inline std::vector<std::vector<std::vector<float>>> flat_groups(const Groups& groups, size_t ranks, int stage,
                                                                size_t sub_group_elements, float scale) {
  std::vector<std::vector<std::vector<float>>> out(ranks);
  if (stage < 3) {
    for (const auto& group : groups) {
      std::vector<float> flat;
      for (const Parameter& p : group)
        for (const float v : p.values()) flat.push_back(scale * v);
      const size_t part = (flat.size() + 2 * ranks - 1) / (2 * ranks) * 2;
      for (size_t rank = 0; rank < ranks; ++rank) out[rank].push_back(slice(flat, rank * part, flat.size(), part));
    }
    return out;
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    std::vector<float> flat;
    for (const auto& group : groups) {
      for (const Parameter& p : group) {
        std::vector<float> values = p.values();
        for (float& v : values) v *= scale;
        const size_t part = (values.size() + ranks - 1) / ranks;
        for (const float v : slice(values, rank * part, values.size(), part)) flat.push_back(v);
      }
    }
    for (size_t at = 0; at < flat.size(); at += sub_group_elements)
      out[rank].push_back(slice(flat, at, flat.size(), std::min(sub_group_elements, flat.size() - at)));
  }
  return out;
}

struct CheckpointOptions {
  size_t ranks = 2;
  int stage = 2;
  size_t sub_group_elements = 1 << 20;
  std::vector<Parameter> frozen;
  double dynamic_loss_scale = 0;  // 0: none, files of bf16; else files of fp16
};

// A whole directory; the two moments are a half and a quarter of the masters.
inline Files checkpoint_of(const Groups& groups, const CheckpointOptions& options) {
  Files files = {{"latest", "global_step7"}};
  const auto flats = [&](float scale) {
    return flat_groups(groups, options.ranks, options.stage, options.sub_group_elements, scale);
  };
  const auto masters = flats(1), first = flats(0.5f), second = flats(0.25f);
  for (size_t rank = 0; rank < options.ranks; ++rank) {
    TorchWriter torch;
    const auto tensor = [&](const std::vector<float>& v) { return torch.tensor({static_cast<int64_t>(v.size())}, v); };
    std::vector<std::pair<std::string, std::string>> states;
    std::vector<std::string> flat, partitions;
    for (size_t i = 0; i < masters[rank].size(); ++i) {
      states.emplace_back(number(static_cast<int32_t>(i)), dict({{text("step"), torch.tensor({}, {7.0f})},
                                                                 {text("exp_avg"), tensor(first[rank][i])},
                                                                 {text("exp_avg_sq"), tensor(second[rank][i])}}));
      flat.push_back(tensor(options.stage == 3 ? masters[rank][i] : without_padding(masters[rank][i])));
      partitions.push_back(number(static_cast<int32_t>(options.ranks)));
    }
    const std::string state = dict({{text("state"), dict(states)}, {text("param_groups"), list({})}});
    const bool is_third = options.stage == 3;
    const std::string stage =
        call(global("deepspeed.runtime.zero.config", "ZeroStageEnum"), tuple({number(options.stage)}));
    const bool is_fp16 = options.dynamic_loss_scale > 0;
    const std::string scaler =
        global("deepspeed.runtime.fp16.loss_scaler", is_fp16 ? "DynamicLossScaler" : "LossScaler") + ")\x81" +
        dict({{text("cur_scale"), real(is_fp16 ? options.dynamic_loss_scale : 1.0)}, {text("cur_iter"), number(7)}}) +
        "b";
    const std::string optimizer =
        dict({{text("zero_stage"), stage},
              {text("loss_scaler"), scaler},
              {text("partition_count"), is_third ? number(static_cast<int32_t>(options.ranks)) : list(partitions)},
              {text(is_third ? "optimizer_state_dict" : "base_optimizer_state"), state},
              {text(is_third ? "fp32_flat_groups" : "single_partition_of_fp32_groups"), list(flat)}});
    const std::string name = "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00";
    files["global_step7/" + std::string(is_fp16 ? "" : "bf16_") + name + "_optim_states.pt"] =
        torch.file(dict({{text("optimizer_state_dict"), optimizer}}));
    if (rank > 0 && !is_third) continue;

    TorchWriter model;
    std::vector<std::string> shapes;
    for (const auto& group : groups) {
      std::vector<std::pair<std::string, std::string>> sizes;
      for (const Parameter& p : group) sizes.emplace_back(text(p.name), size_of(p.shape));
      shapes.push_back(ordered_dict(sizes));
    }
    std::vector<std::pair<std::string, std::string>> frozen_sizes, fragments;
    for (const Parameter& p : options.frozen) {
      frozen_sizes.emplace_back(text(p.name), size_of(p.shape));
      const std::vector<float> values = p.values();
      const size_t part = (values.size() + options.ranks - 1) / options.ranks;
      fragments.emplace_back(text(p.name), is_third ? model.tensor({static_cast<int64_t>(part)},
                                                                   slice(values, rank * part, values.size(), part))
                                                    : model.tensor(p.shape, values));
    }
    const std::string state_dict =
        dict({{text("module"),
               ordered_dict({{text("inv_freq"), model.tensor({3}, {1, 2, 3})},
                             {text("unlisted"), model.tensor({1, 2}, {8, 9})},
                             {text("lm_head.weight"), is_third ? model.tensor({0}, {}) : model.tensor({2}, {5, 6})},
                             {text(groups[0][0].name), is_third ? model.tensor({0}, {}) : model.tensor({2}, {5, 6})}})},
              {text("buffer_names"), list({text("inv_freq"), text("not_saved")})},
              {text("param_shapes"), list(shapes)},
              {text("frozen_param_shapes"), options.frozen.empty() ? "N" : ordered_dict(frozen_sizes)},
              {text("frozen_param_fragments"), options.frozen.empty() ? "N" : ordered_dict(fragments)},
              {text("shared_params"), dict({{text("lm_head.weight"), text("embed")}})},
              {text("global_steps"), number(7)},
              {text("ds_version"), text("0.19.8")}});
    files["global_step7/" + (is_third ? name : std::string("mp_rank_00")) + "_model_states.pt"] =
        model.file(state_dict);
  }
  return files;
}

using chassis::testing::source_of;

}  // namespace zero_import::testing
