// The base of model families: reads a config.json, records the program, maps names to disk and back.
#pragma once

#include <string>
#include <string_view>

#include "chassis/builder.hpp"
#include "chassis/member.hpp"

CHASSIS_SDK_BEGIN

// All [control].
class Model : public Member {
 public:
  static constexpr std::string_view kKind = "model";
  using Member::Member;

  // The text of config.json. Called once, before all others; refuses what the family can not do, by name.
  virtual void configure(std::string_view config_json) = 0;
  virtual void record(Builder& b) = 0;
  // config.json for an export: complete, readable by the family's reference implementation.
  virtual std::string config() const = 0;
  // The name on disk of a parameter; equal unless overridden.
  virtual std::string disk_name(std::string_view parameter) const { return std::string(parameter); }
  // The parameter of a name on disk; empty if that tensor is to be skipped.
  virtual std::string parameter_name(std::string_view disk_name) const { return std::string(disk_name); }
  // The longest sequence that the weights were made for; 0: no bound.
  virtual int64_t max_positions() const { return 0; }

  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    constexpr bool kMapsNames = kOverridden<&Model::disk_name, &T::disk_name>;
    constexpr bool kMapsBack = kOverridden<&Model::parameter_name, &T::parameter_name>;
    static constexpr chassis_model_t kTable = {sizeof(chassis_model_t),
                                               0,
                                               &configure_entry,
                                               &record_entry,
                                               &config_entry,
                                               kMapsNames ? &disk_name_entry : nullptr,
                                               kMapsBack ? &parameter_name_entry : nullptr,
                                               &max_positions_entry};
    return id == CHASSIS_MODEL_ID ? &kTable : nullptr;
  }

 private:
  static chassis_status_t* configure_entry(chassis_instance* self, chassis_str_t json) noexcept {
    Model& model = member_of<Model>(self);
    return guard(model.host().table(), [&] { model.configure(text_of(json)); });
  }
  static chassis_status_t* record_entry(chassis_instance* self, const chassis_builder_t* raw) noexcept {
    Model& model = member_of<Model>(self);
    return guard(model.host().table(), [&] {
      Builder builder(model.host(), *raw);
      model.record(builder);
    });
  }
  static chassis_status_t* config_entry(chassis_instance* self, const chassis_text_sink_t* out) noexcept {
    Model& model = member_of<Model>(self);
    return guard(model.host().table(), [&] { out->text(out, str(model.config())); });
  }
  static chassis_status_t* disk_name_entry(chassis_instance* self, chassis_str_t parameter,
                                           const chassis_text_sink_t* out) noexcept {
    Model& model = member_of<Model>(self);
    return guard(model.host().table(), [&] { out->text(out, str(model.disk_name(text_of(parameter)))); });
  }
  static chassis_status_t* parameter_name_entry(chassis_instance* self, chassis_str_t disk_name,
                                                const chassis_text_sink_t* out) noexcept {
    Model& model = member_of<Model>(self);
    return guard(model.host().table(), [&] { out->text(out, str(model.parameter_name(text_of(disk_name)))); });
  }
  static int64_t max_positions_entry(chassis_instance* self) noexcept {
    return member_of<Model>(self).max_positions();
  }
};

CHASSIS_SDK_END
