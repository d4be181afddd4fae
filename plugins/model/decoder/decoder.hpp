// The program that decoder-only families share: embedding, pre-norm layers with grouped-query attention, rotary
// positions and a gated MLP, and a head. A family is a Family, and a class that derives from Decoder.
#pragma once

#include <string>

#include "chassis/model.hpp"
#include "config.hpp"

namespace decoder {

class Decoder : public chassis::Model {
 public:
  // `family` outlives the model.
  Decoder(const chassis::Host& host, const Family& family) : Model(host), family_(family) {}

  void configure(std::string_view config_json) override;
  void record(chassis::Builder& b) override;
  std::string config() const override { return write_config(family_, config_); }
  int64_t max_positions() const override { return config_.max_position_embeddings; }
  // Tensors on disk have the names and shapes of the parameters.
  void disk_mapping(chassis::DiskMapping& m) const override;

 private:
  // Layers of one kind are recorded once.
  struct LayerKind {
    bool slides = false, has_experts = false, rotates = true;
    auto operator<=>(const LayerKind&) const = default;
  };
  LayerKind kind_of(size_t layer) const;
  bool has_expert_layers() const;
  chassis::Block layer(chassis::Builder& b, LayerKind kind) const;
  chassis::Value attention(chassis::Builder& b, const chassis::Value& x, LayerKind kind) const;
  // q, k or v of a layer, by its name.
  chassis::Value projected(chassis::Builder& b, const chassis::Value& x, const std::string& name, chassis::Dim heads,
                           chassis::Dim width) const;
  chassis::Value latent_attention(chassis::Builder& b, const chassis::Value& x) const;
  chassis::Value mlp(chassis::Builder& b, const chassis::Value& x, const std::string& name, chassis::Dim width) const;
  chassis::Value experts(chassis::Builder& b, const chassis::Value& x) const;
  chassis::Value norm(chassis::Builder& b, const chassis::Value& x, const std::string& weight) const;
  void expert_mapping(chassis::DiskMapping& m) const;

  const Family& family_;
  Config config_;
  chassis::Dim hidden_{}, vocab_{}, heads_{}, kv_heads_{}, head_dim_{}, ffn_{};
  chassis::Dim all_heads_{}, all_kv_heads_{};  // heads · head_dim, where a norm reads all of them as one
  struct LatentDims {
    chassis::Dim q{}, kv{}, kv_with_rotary{}, plain{}, rotary{}, value{}, query{}, plain_and_value{}, one{};
  } latent_;
  chassis::Dim num_experts_{}, chosen_{}, expert_ffn_{}, shared_ffn_{};
};

}  // namespace decoder
