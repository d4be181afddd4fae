// The base of quantization plugins: says which parameters are stored in components, converts values, and computes the
// ops that read them.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/kind/quant.h"
#include "chassis/ops.hpp"

CHASSIS_SDK_BEGIN

// A parameter of the model.
struct QuantParameter {
  std::string_view name, module;  // "model.layers.3.self_attn.q_proj.weight", without its last part
  std::string_view op;            // the op that reads it: "linear"
  uint32_t role = 0;              // CHASSIS_ROLE_…
  std::vector<int64_t> sizes;
  bool is_added = false;  // by an adapter
  uint32_t num_tied = 0, num_readers = 1;

  bool is_linear_weight() const noexcept { return op == "linear" && sizes.size() == 2 && role != CHASSIS_ROLE_BIAS; }
  // [experts, out, in]
  bool is_expert_weight() const noexcept {
    return op == "grouped_linear" && sizes.size() == 3 && role != CHASSIS_ROLE_BIAS;
  }
};

// One of the tensors in which a parameter is stored; see chassis_component_t.
struct QuantComponent {
  std::string suffix;
  uint32_t dtype = CHASSIS_DTYPE_U8;
  int64_t unit_elements = 0, unit_values = 1;
  int64_t num_values = 0;  // if unit_elements is 0
  uint32_t staged_dtype = 0, flags = 0;
};

// How a parameter is stored. Lives as long as the member that returned it.
class QuantStorage {
 public:
  // `flags`: CHASSIS_STORAGE_…
  QuantStorage(std::string scheme, std::string state_suffix, std::vector<QuantComponent> components, uint32_t flags = 0)
      : scheme_(std::move(scheme)), state_suffix_(std::move(state_suffix)), components_(std::move(components)) {
    for (const QuantComponent& c : components_)
      pointers_.push_back(
          &table_.emplace_back(chassis_component_t{sizeof(chassis_component_t), c.dtype, str(c.suffix), c.unit_elements,
                                                   c.unit_values, c.num_values, c.staged_dtype, c.flags}));
    raw_ = {sizeof raw_,
            static_cast<uint32_t>(pointers_.size()),
            str(scheme_),
            pointers_.data(),
            str(state_suffix_),
            flags,
            0};
  }
  QuantStorage(const QuantStorage&) = delete;
  QuantStorage& operator=(const QuantStorage&) = delete;

  const chassis_quant_storage_t* raw() const noexcept { return &raw_; }
  const std::string& scheme() const noexcept { return scheme_; }
  const std::vector<QuantComponent>& components() const noexcept { return components_; }

 private:
  std::string scheme_, state_suffix_;
  std::vector<QuantComponent> components_;
  std::deque<chassis_component_t> table_;
  std::vector<const chassis_component_t*> pointers_;
  chassis_quant_storage_t raw_{};
};

// Consecutive elements of a parameter and their components; see chassis_quant_part_t.
class QuantPart {
 public:
  explicit QuantPart(const chassis_quant_part_t* raw) : raw_(read_sized(raw)) {}

  const chassis_quant_part_t& raw() const noexcept { return raw_; }
  std::span<const int64_t> sizes() const noexcept { return {raw_.sizes, raw_.num_sizes}; }
  int64_t num_elements() const noexcept {
    int64_t n = 1;
    for (const int64_t size : sizes()) n *= size;
    return n;
  }
  int64_t begin() const noexcept { return raw_.begin; }
  int64_t count() const noexcept { return raw_.count; }
  uint32_t value_dtype() const noexcept { return raw_.value_dtype; }
  void* values() const noexcept { return raw_.values; }
  // NULL if this call does not have it.
  template <typename T>
  T* component(size_t i) const noexcept {
    return static_cast<T*>(raw_.components[i]);
  }
  template <typename T>
  const T* staged(size_t i) const noexcept {
    return raw_.staged != nullptr ? static_cast<const T*>(raw_.staged[i]) : nullptr;
  }

 private:
  chassis_quant_part_t raw_;
};

// Also computes the ops whose first parameter it stores, through the base class. Patterns as in Ops.
class Quant : public Ops {
 public:
  static constexpr std::string_view kKind = "quant";
  using Ops::Ops;

  // [control] Gets "quantization_config" of the model's config.json; empty without one. Called once, before all others.
  // Returns true if the model's files hold components.
  virtual bool configure(std::string_view config_json) = 0;
  // [control] Returns how the parameter is stored; NULL: as it is.
  virtual const QuantStorage* storage(const QuantParameter& parameter) = 0;
  // [control] Called after the whole model was offered; refuses options that matched nothing.
  virtual void finish_model() {}
  // [any] Converts values to components.
  virtual void encode(const QuantPart& part) const = 0;
  // [any] Converts staged components to components, and computes the components of the whole parameter. Not overridden
  // if there are none.
  virtual void finish(const QuantPart&) const {}
  // [any] Converts components to values.
  virtual void decode(const QuantPart& part) const = 0;
  // [any] Refuses impossible values of components. Not overridden if all values are possible.
  virtual void verify(const QuantPart&) const {}
  // [any] Write and read the text that files have in addition to the components. For storages with a state suffix.
  virtual std::string write_state(const QuantPart&) const { throw Failure(CHASSIS_INTERNAL, "no state is written"); }
  virtual void read_state(const QuantPart&, std::string_view) const {}
  // [control] Returns "quantization_config".
  virtual std::string config() const = 0;

  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    constexpr bool kFinishes = kOverridden<&Quant::finish, &T::finish>,
                   kVerifies = kOverridden<&Quant::verify, &T::verify>;
    static constexpr chassis_quant_t kTable = {sizeof(chassis_quant_t),
                                               0,
                                               &configure_entry,
                                               &parameter_entry,
                                               &finish_model_entry,
                                               &part_entry<&Quant::encode>,
                                               kFinishes ? &part_entry<&Quant::finish> : nullptr,
                                               &part_entry<&Quant::decode>,
                                               kVerifies ? &part_entry<&Quant::verify> : nullptr,
                                               &write_state_entry,
                                               &read_state_entry,
                                               &config_entry};
    return id == CHASSIS_QUANT_ID ? &kTable : Ops::interface<T>(id);
  }

 private:
  template <typename Body>
  static chassis_status_t* call(chassis_instance* self, Body&& body) noexcept {
    Quant& quant = member_of<Quant>(self);
    return guard(quant.host().table(), [&] { body(quant); });
  }
  static chassis_status_t* configure_entry(chassis_instance* self, chassis_str_t json, uint32_t* is_stored) noexcept {
    return call(self, [&](Quant& quant) { *is_stored = quant.configure(text_of(json)) ? 1 : 0; });
  }
  static chassis_status_t* parameter_entry(chassis_instance* self, const chassis_quant_parameter_t* raw,
                                           const chassis_quant_storage_t** storage) noexcept {
    return call(self, [&](Quant& quant) {
      const auto p = read_sized(raw);
      const QuantStorage* found = quant.storage({text_of(p.name),
                                                 text_of(p.module),
                                                 text_of(p.op),
                                                 p.role,
                                                 {p.sizes, p.sizes + p.num_dims},
                                                 p.is_added != 0,
                                                 p.num_tied,
                                                 p.num_readers});
      *storage = found != nullptr ? found->raw() : nullptr;
    });
  }
  static chassis_status_t* finish_model_entry(chassis_instance* self) noexcept {
    return call(self, [](Quant& quant) { quant.finish_model(); });
  }
  template <void (Quant::*Function)(const QuantPart&) const>
  static chassis_status_t* part_entry(chassis_instance* self, const chassis_quant_part_t* raw) noexcept {
    return call(self, [&](const Quant& quant) { (quant.*Function)(QuantPart(raw)); });
  }
  static chassis_status_t* write_state_entry(chassis_instance* self, const chassis_quant_part_t* raw,
                                             const chassis_text_sink_t* out) noexcept {
    return call(self, [&](Quant& quant) { out->text(out, str(quant.write_state(QuantPart(raw)))); });
  }
  static chassis_status_t* read_state_entry(chassis_instance* self, const chassis_quant_part_t* raw,
                                            chassis_str_t text) noexcept {
    return call(self, [&](Quant& quant) { quant.read_state(QuantPart(raw), text_of(text)); });
  }
  static chassis_status_t* config_entry(chassis_instance* self, const chassis_text_sink_t* out) noexcept {
    return call(self, [&](Quant& quant) { out->text(out, str(quant.config())); });
  }
};

CHASSIS_SDK_END
