// Rotary positions in config.json, and their angles: default, linear, llama3, longrope and yarn.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/builder.hpp"
#include "reader.hpp"

namespace decoder {

struct Rope {
  std::string type = "default";
  double theta = 10000.0;
  double factor = 0;             // linear, llama3, yarn; longrope: 0 if not given
  double low_freq_factor = 1.0;  // llama3
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 0;             // llama3, longrope, yarn
  std::vector<double> short_factor = {}, long_factor = {};  // longrope
  double attention_factor = 0;                              // longrope, yarn: 0 if not given
  double beta_fast = 32, beta_slow = 1;                     // yarn
  double mscale = 0, mscale_all_dim = 0;                    // yarn: 0 if not given
  bool truncate = true;                                     // yarn: the bounds of its ramp are rounded
  double partial_rotary_factor = 1;
  bool operator==(const Rope&) const = default;
};

// The features of rope that a family supports.
struct RopeSupport {
  std::vector<std::string_view> types = {"default", "linear", "llama3"};
  bool partial = false;  // partial_rotary_factor
  double theta = 10000;  // where the file has no rope_theta
};

// Reads a table, rope_parameters or rope_scaling, over `rope`.
void read_rope(const Json& table, std::string_view family, const std::string& name, const RopeSupport& support,
               Rope& rope, std::vector<std::string>& unknown);
// Reads rope_theta with rope_scaling, or rope_parameters; both must agree. Longrope reads max_position_embeddings.
Rope read_both_ropes(Reader& reader, const RopeSupport& support, std::vector<std::string>& unknown);
// Writes rope_theta, rope_scaling and rope_parameters: transformers 4 reads the first two, 5 the third.
void write_rope(const Rope& rope, Json& out);
Json rope_parameters(const Rope& rope);

// rotary_dim/2 angles per position, in float32 arithmetic as in transformers' modeling_rope_utils. `factors` are those
// of longrope.
std::vector<double> inverse_frequencies(const Rope& rope, int64_t rotary_dim, const std::vector<double>& factors = {});

// The factor by which YaRN scales cos and sin, and that of scores which DeepSeek-V2 adds to it (Peng et al. 2023).
double yarn_attention_factor(const Rope& rope);
double yarn_score_factor(const Rope& rope);

// The op's attributes. Throws if the numbers of a longrope do not fit head_dim.
chassis::Rope rope_attributes(const Rope& rope, int64_t head_dim, int64_t max_position_embeddings);

}  // namespace decoder
