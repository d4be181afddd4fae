// The base of model families: a model reads a config.json, records the program, and says how files hold the parameters.
#pragma once

#include <string>
#include <string_view>

#include "chassis/builder.hpp"
#include "chassis/disk_mapping.hpp"
#include "chassis/member.hpp"

CHASSIS_SDK_BEGIN

// All [control].
class Model : public Member {
 public:
  static constexpr std::string_view kKind = "model";
  using Member::Member;

  // Gets the text of config.json. Called once, before all others; refuses what the family cannot do, by name.
  virtual void configure(std::string_view config_json) = 0;
  virtual void record(Builder& b) = 0;
  // Returns config.json for an export: complete, readable by the family's reference implementation.
  virtual std::string config() const = 0;
  // Declares how files hold the parameters; unless overridden, each is a tensor of the same name and shape.
  virtual void disk_mapping(DiskMapping&) const {}
  // The longest sequence that the weights were made for; 0: no bound.
  virtual int64_t max_positions() const { return 0; }

  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    constexpr bool kMaps = kOverridden<&Model::disk_mapping, &T::disk_mapping>;
    static constexpr chassis_model_t kTable = {sizeof(chassis_model_t), 0,
                                               &configure_entry,        &record_entry,
                                               &config_entry,           kMaps ? &disk_mapping_entry : nullptr,
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
  static chassis_status_t* disk_mapping_entry(chassis_instance* self, const chassis_disk_sink_t* raw) noexcept {
    Model& model = member_of<Model>(self);
    return guard(model.host().table(), [&] {
      DiskMapping mapping(model.host(), *raw);
      model.disk_mapping(mapping);
    });
  }
  static int64_t max_positions_entry(chassis_instance* self) noexcept { return member_of<Model>(self).max_positions(); }
};

CHASSIS_SDK_END
