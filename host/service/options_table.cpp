// chassis.options/1: the options of an instance, checked against the member's schema before it was made.
#include "chassis/service/options.h"

#include <map>
#include <mutex>

#include "host/base/json.hpp"
#include "host/plugin/status.hpp"
#include "host/service/tables.hpp"

namespace chassis {
namespace {

class OptionsTable final : public Table {
 public:
  explicit OptionsTable(const TableContext& context) : context_(context) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.get_bool = [](const chassis_options_t* t, chassis_str_t name, uint32_t* out) {
      return read(t, name, "a bool", &Json::is_boolean, [&](const Json& value) { *out = value.get<bool>(); });
    };
    table_.get_int = [](const chassis_options_t* t, chassis_str_t name, int64_t* out) {
      return read(t, name, "an integer", &Json::is_number_integer,
                  [&](const Json& value) { *out = value.get<int64_t>(); });
    };
    table_.get_float = [](const chassis_options_t* t, chassis_str_t name, double* out) {
      return read(t, name, "a number", &Json::is_number, [&](const Json& value) { *out = value.get<double>(); });
    };
    table_.get_string = [](const chassis_options_t* t, chassis_str_t name, chassis_str_t* out) {
      return read(t, name, "a string", &Json::is_string,
                  [&](const Json& value) { *out = str_of(value.get_ref<const std::string&>()); });
    };
    table_.get_json = [](const chassis_options_t* t, chassis_str_t name, chassis_str_t* out) {
      return read(t, name, "", nullptr, [&](const Json& value) {
        OptionsTable& table = self(t);
        const std::lock_guard lock(table.mutex_);
        auto [at, inserted] = table.json_texts_.try_emplace(std::string(view_of(name)));
        if (inserted) at->second = value.dump();
        *out = str_of(at->second);
      });
    };
    table_.origin = [](const chassis_options_t* t, chassis_str_t name, chassis_str_t* out) {
      return read(t, name, "", nullptr, [&](const Json&) {
        const auto& origins = self(t).context_.instance.origins;
        const auto at = origins.find(std::string(view_of(name)));
        *out = at == origins.end() ? str_of("default") : str_of(at->second);
      });
    };
  }
  const void* get() const override { return &table_; }

 private:
  static OptionsTable& self(const chassis_options_t* t) { return *static_cast<OptionsTable*>(t->impl); }

  template <typename Use>
  static chassis_status_t* read(const chassis_options_t* t, chassis_str_t name, const char* type,
                                bool (Json::*has_type)() const noexcept, Use use) noexcept {
    try {
      const InstanceContext& context = self(t).context_.instance;
      const std::string key(view_of(name));
      const auto at = context.options.find(key);
      if (at == context.options.end())
        return make_status(CHASSIS_NOT_FOUND, "option '" + key + "' is not in the schema of " + context.kind + "/" +
                                                 context.member_id);
      if (has_type && !((*at).*has_type)())
        return make_status(CHASSIS_INVALID_ARGUMENT, "option '" + key + "' of " + context.kind + "/" +
                                                        context.member_id + " is " + at->dump() + ", not " + type);
      use(*at);
      return nullptr;
    } catch (...) {
      return status_of_current_exception();
    }
  }

  const TableContext& context_;
  std::mutex mutex_;
  std::map<std::string, std::string> json_texts_;
  chassis_options_t table_{};
};

}  // namespace

std::unique_ptr<Table> make_options_table(const TableContext& context) {
  return std::make_unique<OptionsTable>(context);
}

}  // namespace chassis
