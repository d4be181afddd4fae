// Reads, checks and writes rope tables, and computes the angles of each type.
#include "rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace decoder {
namespace {

using chassis::fail_config;
using chassis::fail_invalid;

void read_llama3(const Json& table, const std::string& name, Reader& reader, Rope& rope) {
  for (const char* key : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    if (table.find(key) == table.end()) fail_config({name}, name, " of type 'llama3' has no ", key);
  }
  rope.low_freq_factor = reader.positive("low_freq_factor", 1.0);
  rope.high_freq_factor = reader.positive("high_freq_factor", 4.0);
  rope.original_max_position_embeddings = reader.size("original_max_position_embeddings", 8192);
  if (rope.high_freq_factor < rope.low_freq_factor) {
    fail_config({name + ".high_freq_factor", name + ".low_freq_factor"}, name, ".high_freq_factor ",
                rope.high_freq_factor, " is below low_freq_factor ", rope.low_freq_factor);
  }
}

void read_longrope(const std::string& name, Reader& reader, Rope& rope) {
  rope.short_factor = reader.numbers("short_factor");
  rope.long_factor = reader.numbers("long_factor");
  for (const auto& [key, list] : {std::pair("short_factor", &rope.short_factor), {"long_factor", &rope.long_factor}})
    if (list->empty()) fail_config({name}, name, " of type 'longrope' has no ", key);
  rope.factor = reader.positive("factor", 0);
  rope.attention_factor = reader.positive("attention_factor", 0);
  rope.original_max_position_embeddings =
      reader.size("original_max_position_embeddings", rope.original_max_position_embeddings);
}

void read_yarn(const Json& table, const std::string& name, Reader& reader, Rope& rope) {
  for (const char* key : {"factor", "original_max_position_embeddings"})
    if (table.find(key) == table.end()) fail_config({name}, name, " of type 'yarn' has no ", key);
  rope.factor = reader.positive("factor", 1.0);
  rope.original_max_position_embeddings = reader.size("original_max_position_embeddings", 4096);
  rope.attention_factor = reader.positive("attention_factor", 0);
  rope.beta_fast = reader.positive("beta_fast", 32);
  rope.beta_slow = reader.positive("beta_slow", 1);
  rope.mscale = reader.number("mscale", 0);
  rope.mscale_all_dim = reader.number("mscale_all_dim", 0);
  rope.truncate = reader.boolean("truncate", true);
  if (rope.beta_fast <= rope.beta_slow)
    fail_config({name + ".beta_fast", name + ".beta_slow"}, name, ".beta_fast ", rope.beta_fast,
                " is not above beta_slow ", rope.beta_slow);
}

// 1 for a scale of at most 1, else 1 + 0.1 · mscale · ln(scale).
double yarn_mscale(double scale, double mscale) { return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1; }

// The part of each frequency that is interpolated, from 0 for fast ones to 1 for slow ones.
std::vector<float> yarn_ramp(const Rope& rope, int64_t rotary_dim) {
  const auto dim = static_cast<double>(rotary_dim);
  const auto at = [&](double turns) {
    const auto length = static_cast<double>(rope.original_max_position_embeddings);
    return dim * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = at(rope.beta_fast), high = at(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  std::vector<float> ramp;
  for (int64_t i = 0; i < rotary_dim / 2; ++i)
    ramp.push_back(
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f));
  return ramp;
}

// Refuses a key next to the tables whose value differs from the one in a table.
template <typename Number>
void require_same(Reader& reader, const char* key, Number beside, const char* table, Number inside) {
  if (reader.find(key) != nullptr && beside != inside)
    fail_config({key, std::string(table) + "." + key}, key, " ", beside, " contradicts ", table, ".", key, " ", inside,
                "; remove one of them");
}

}  // namespace

void read_rope(const Json& table, std::string_view family, const std::string& name, const RopeSupport& support,
               Rope& rope, std::vector<std::string>& unknown) {
  if (!table.is_object()) fail_config({name}, name, " is ", table.dump(), ", expected a table");
  Reader reader(table, family, name + ".");
  rope.theta = reader.positive("rope_theta", rope.theta);
  const auto supports = [&](std::string_view type) {
    return std::find(support.types.begin(), support.types.end(), type) != support.types.end();
  };
  const auto today = [&](const std::string& type) {
    return type == "su" && supports("longrope") ? "longrope" : type;  // its first name
  };
  const std::string old_spelling = today(reader.text("type", "default"));
  rope.type = today(reader.text("rope_type", old_spelling));
  if (reader.find("type") != nullptr && old_spelling != rope.type)
    fail_config({name + ".type", name + ".rope_type"}, name, ".type '", old_spelling, "' contradicts ", name,
                ".rope_type '", rope.type, "'");
  if (!supports(rope.type)) {
    fail_config({name + ".rope_type", name + ".type"}, "rope type '", rope.type, "' is not supported by model '",
                family, "' (supported: ", list_of(support.types), ")");
  }
  if (!support.partial) reader.require_neutral("partial_rotary_factor", 1.0);
  rope.partial_rotary_factor = reader.positive("partial_rotary_factor", rope.partial_rotary_factor);
  if (rope.type == "linear" || rope.type == "llama3") {
    if (table.find("factor") == table.end()) fail_config({name}, name, " of type '", rope.type, "' has no factor");
    rope.factor = reader.positive("factor", 1.0);
  }
  if (rope.type == "llama3") read_llama3(table, name, reader, rope);
  if (rope.type == "longrope") read_longrope(name, reader, rope);
  if (rope.type == "yarn") read_yarn(table, name, reader, rope);
  // transformers leaves these keys in tables of types that do not read them.
  if (rope.type == "default") reader.ignore({"factor", "original_max_position_embeddings", "attention_factor"});
  for (const std::string& key : reader.unknown_keys()) unknown.push_back(name + "." + key);
}

Rope read_both_ropes(Reader& reader, const RopeSupport& support, std::vector<std::string>& unknown) {
  Rope rope;
  rope.theta = reader.positive("rope_theta", support.theta);
  if (support.partial)
    rope.partial_rotary_factor = reader.positive("partial_rotary_factor", 1.0);
  else
    reader.require_neutral("partial_rotary_factor", 1.0);
  const bool long_type = std::find(support.types.begin(), support.types.end(), "longrope") != support.types.end();
  if (long_type) rope.original_max_position_embeddings = reader.size("original_max_position_embeddings", 0);
  const Rope beside = rope;
  const auto finish = [&](const char* table, Rope& read) {
    require_same(reader, "rope_theta", beside.theta, table, read.theta);
    if (support.partial)
      require_same(reader, "partial_rotary_factor", beside.partial_rotary_factor, table, read.partial_rotary_factor);
    if (read.type == "longrope")
      require_same(reader, "original_max_position_embeddings", beside.original_max_position_embeddings, table,
                   read.original_max_position_embeddings);
    if (read.type == "longrope" && read.original_max_position_embeddings < 2)
      fail_config({"original_max_position_embeddings", table},
                  "a rope of type 'longrope' needs original_max_position_embeddings above 1, got ",
                  read.original_max_position_embeddings);
    if (read.type == "default" || read.type == "linear") read.original_max_position_embeddings = 0;
  };
  Rope scaled = rope;
  const Json* scaling = reader.find("rope_scaling");
  if (scaling != nullptr) read_rope(*scaling, reader.family(), "rope_scaling", support, scaled, unknown);
  finish("rope_scaling", scaled);
  const Json* parameters = reader.find("rope_parameters");
  if (parameters == nullptr) return scaled;
  read_rope(*parameters, reader.family(), "rope_parameters", support, rope, unknown);
  finish("rope_parameters", rope);
  scaled.theta = rope.theta;
  if (scaling != nullptr && scaled != rope) {
    fail_config({"rope_scaling", "rope_parameters"}, "rope_scaling ", scaling->dump(), " contradicts rope_parameters ",
                parameters->dump());
  }
  return rope;
}

Json rope_parameters(const Rope& rope) {
  Json out = {{"rope_type", rope.type}, {"rope_theta", rope.theta}};
  if (rope.factor != 0) out["factor"] = rope.factor;
  if (rope.type == "llama3") {
    out["low_freq_factor"] = rope.low_freq_factor;
    out["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == "longrope") {
    out["short_factor"] = rope.short_factor;
    out["long_factor"] = rope.long_factor;
    if (rope.attention_factor != 0) out["attention_factor"] = rope.attention_factor;
  }
  if (rope.type == "yarn") {
    if (rope.attention_factor != 0) out["attention_factor"] = rope.attention_factor;
    out["beta_fast"] = rope.beta_fast;
    out["beta_slow"] = rope.beta_slow;
    if (rope.mscale != 0) out["mscale"] = rope.mscale;
    if (rope.mscale_all_dim != 0) out["mscale_all_dim"] = rope.mscale_all_dim;
    if (!rope.truncate) out["truncate"] = false;
  }
  if (rope.original_max_position_embeddings != 0)
    out["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  if (rope.partial_rotary_factor != 1) out["partial_rotary_factor"] = rope.partial_rotary_factor;
  return out;
}

void write_rope(const Rope& rope, Json& out) {
  const Json parameters = rope_parameters(rope);
  Json scaling = nullptr;
  if (rope.type != "default") {
    scaling = parameters;
    scaling.erase("rope_theta");
  }
  out["rope_theta"] = rope.theta;
  out["rope_scaling"] = scaling;
  out["rope_parameters"] = parameters;
  if (rope.partial_rotary_factor != 1) out["partial_rotary_factor"] = rope.partial_rotary_factor;
  if (rope.type == "longrope") out["original_max_position_embeddings"] = rope.original_max_position_embeddings;
}

std::vector<double> inverse_frequencies(const Rope& rope, int64_t rotary_dim, const std::vector<double>& factors) {
  // PyTorch computes scalar / tensor as reciprocal · scalar; the order of roundings here is the same.
  const auto reciprocal = [](float x) { return 1.0f / x; };
  const float factor = static_cast<float>(rope.factor);
  const double low_wavelength = static_cast<double>(rope.original_max_position_embeddings) / rope.low_freq_factor;
  const double high_wavelength = static_cast<double>(rope.original_max_position_embeddings) / rope.high_freq_factor;

  const std::vector<float> ramp = rope.type == "yarn" ? yarn_ramp(rope, rotary_dim) : std::vector<float>();

  std::vector<double> out;
  for (int64_t i = 0; i < rotary_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(rotary_dim);
    const auto power = static_cast<float>(std::pow(static_cast<double>(static_cast<float>(rope.theta)), exponent));
    float inv_freq = reciprocal(factors.empty() ? power : static_cast<float>(factors[out.size()]) * power);
    if (rope.type == "linear") inv_freq /= factor;
    if (rope.type == "yarn") {
      const float extrapolated = 1.0f - ramp[out.size()];
      inv_freq = reciprocal(factor * power) * (1.0f - extrapolated) + inv_freq * extrapolated;
    }
    if (rope.type == "llama3") {
      const float wavelength = reciprocal(inv_freq) * static_cast<float>(2 * std::numbers::pi);
      if (wavelength > static_cast<float>(low_wavelength)) {
        inv_freq /= factor;
      } else if (rope.high_freq_factor > rope.low_freq_factor && !(wavelength < static_cast<float>(high_wavelength))) {
        const float turns = reciprocal(wavelength) * static_cast<float>(rope.original_max_position_embeddings);
        const float smooth = (turns - static_cast<float>(rope.low_freq_factor)) /
                             static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
        inv_freq = (1.0f - smooth) * inv_freq / factor + smooth * inv_freq;
      }
    }
    out.push_back(inv_freq);
  }
  return out;
}

double yarn_attention_factor(const Rope& rope) {
  if (rope.attention_factor != 0) return rope.attention_factor;
  if (rope.mscale != 0 && rope.mscale_all_dim != 0)
    return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
  return yarn_mscale(rope.factor, 1);
}

double yarn_score_factor(const Rope& rope) {
  if (rope.type != "yarn" || rope.mscale_all_dim == 0) return 1;
  const double mscale = yarn_mscale(rope.factor, rope.mscale_all_dim);
  return mscale * mscale;
}

chassis::Rope rope_attributes(const Rope& rope, int64_t head_dim, int64_t max_position_embeddings) {
  const auto rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * rope.partial_rotary_factor);
  if (rotary_dim < 2 || rotary_dim > head_dim || rotary_dim % 2 != 0)
    fail_config({"partial_rotary_factor", "head_dim"}, "partial_rotary_factor ", rope.partial_rotary_factor,
                " of head_dim ", head_dim, " gives ", rotary_dim,
                " rotated dims, expected an even number from 2 to head_dim");
  chassis::Rope out;
  if (rotary_dim != head_dim) out.rotary_dim = rotary_dim;
  if (rope.type != "longrope") {
    out.inv_freq = inverse_frequencies(rope, rotary_dim);
    if (rope.type == "yarn") out.factor = yarn_attention_factor(rope);
    return out;
  }
  for (const auto& [name, list] : {std::pair("short_factor", &rope.short_factor), {"long_factor", &rope.long_factor}})
    if (2 * static_cast<int64_t>(list->size()) != rotary_dim)
      fail_invalid("the rope's ", name, " has ", list->size(), " numbers, expected ", rotary_dim / 2, " for ",
                   rotary_dim, " rotated dims");
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const double factor = rope.factor != 0 ? rope.factor : static_cast<double>(max_position_embeddings) / original;
  out.factor = rope.attention_factor != 0 ? rope.attention_factor
               : factor <= 1              ? 1.0
                                          : std::sqrt(1 + std::log(factor) / std::log(original));
  out.inv_freq = inverse_frequencies(rope, rotary_dim, rope.short_factor);
  out.long_inv_freq = inverse_frequencies(rope, rotary_dim, rope.long_factor);
  out.long_from = rope.original_max_position_embeddings;
  return out;
}

}  // namespace decoder
