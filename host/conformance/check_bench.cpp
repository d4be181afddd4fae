// Libraries, options and instances for the tests of `plugins check`, and the list of tests.
#include "host/conformance/check_bench.hpp"

#include <dirent.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "host/base/json.hpp"
#include "host/config/config.hpp"
#include "host/config/read.hpp"
#include "host/plugin/option_schema.hpp"

namespace chassis::check {
namespace {

class ServicesWithout : public InstanceServices {
 public:
  ServicesWithout(std::unique_ptr<InstanceServices> inner, std::string hidden)
      : inner_(std::move(inner)), hidden_(std::move(hidden)) {}
  const void* get(std::string_view id) override { return id == hidden_ ? nullptr : inner_->get(id); }
  int64_t live_tensors() const override { return inner_->live_tensors(); }

 private:
  std::unique_ptr<InstanceServices> inner_;
  std::string hidden_;
};

class AskedServices : public InstanceServices {
 public:
  AskedServices(std::unique_ptr<InstanceServices> inner, WatchedServices& watch)
      : inner_(std::move(inner)), watch_(watch) {}
  const void* get(std::string_view id) override {
    watch_.add(id);
    return inner_->get(id);
  }
  int64_t live_tensors() const override { return inner_->live_tensors(); }

 private:
  std::unique_ptr<InstanceServices> inner_;
  WatchedServices& watch_;
};

// A value for an option that has no default.
Json guess(const OptionSpec& spec) {
  const double low = spec.min.value_or(std::min(1.0, spec.max.value_or(1.0)));
  switch (spec.type) {
    case OptionType::kBool:
      return false;
    case OptionType::kInt:
      return static_cast<int64_t>(low);
    case OptionType::kFloat:
      return low;
    case OptionType::kString:
      return spec.choices.empty() ? "x" : spec.choices.front();
    case OptionType::kTable:
      return Json::object();
    default:
      return Json::array();
  }
}

}  // namespace

std::unique_ptr<InstanceServices> WithoutService::attach(const InstanceContext& context) {
  return std::make_unique<ServicesWithout>(inner_.attach(context), hidden_);
}

std::unique_ptr<InstanceServices> WatchedServices::attach(const InstanceContext& context) {
  return std::make_unique<AskedServices>(inner_.attach(context), *this);
}

void WatchedServices::add(std::string_view id) {
  const std::lock_guard lock(mutex_);
  asked_.emplace(id);
}

std::set<std::string> WatchedServices::asked() const {
  const std::lock_guard lock(mutex_);
  return asked_;
}

PoisonedHost::PoisonedHost(AbiVersion negotiated, InstanceServices* services, uint32_t struct_size)
    : plain_(negotiated, services) {
  std::memset(bytes_, 0xA5, sizeof(bytes_));
  std::memcpy(bytes_, plain_.get(), sizeof(chassis_host_t));
  std::memcpy(bytes_, &struct_size, sizeof(struct_size));
}

std::shared_ptr<const PluginLibrary> Bench::load() const {
  const PluginFile plugin = file();
  check_plugin_file(plugin, LoadPolicy(), services);
  return std::make_shared<const PluginLibrary>(PluginLibrary::load(plugin, LoadPolicy()));
}

std::vector<OptionSpec> Bench::specs(const PluginLibrary& library, const MemberName& member) const {
  return read_option_specs(library.member(member.kind, member.id), library.manifest().label());
}

Json Bench::options(const PluginLibrary& library, const MemberName& member, bool& all_known) const {
  expect_options_exist(library);
  const std::vector<OptionSpec> all = specs(library, member);
  all_known = true;
  if (hooks.sample_options) {
    Json sample = hooks.sample_options(member, all);
    if (!sample.is_null()) return sample;
  }
  Json options = Json::object();
  Json given;
  try {
    given = Config::read_options(all, hooks.given_options);
  } catch (const Error& refusal) {
    throw BadOption{member.text() + ": " + refusal.message()};
  }
  for (const OptionSpec& spec : all) {
    if (const auto value = given.find(spec.name); value != given.end()) {
      options[spec.name] = *value;
      continue;
    }
    options[spec.name] = spec.required ? guess(spec) : parse_json(spec.default_json, spec.name, ExitCode::kPlugin);
    all_known = all_known && !spec.required;
  }
  return options;
}

void Bench::expect_options_exist(const PluginLibrary& library) const {
  const Json words = read_assignments(hooks.given_options);
  for (const auto& given : words.items()) {
    std::string names;
    bool exists = false;
    for (const MemberName& member : library.manifest().members)
      for (const OptionSpec& spec : specs(library, member)) {
        exists = exists || spec.name == given.key();
        names += (names.empty() ? "" : ", ") + spec.name;
      }
    if (!exists)
      throw BadOption{fmt::format("no member of {} has an option '{}'; {}", library.manifest().id, given.key(),
                                  names.empty() ? "they have none" : "the options are " + names)};
  }
}

InstanceContext Bench::context(const PluginLibrary& library, const MemberName& member) const {
  bool all_known = true;
  InstanceContext context{
      library.manifest().id, member.kind, member.id, &library.manifest(), options(library, member, all_known), {}};
  for (const auto& item : context.options.items()) context.origins[item.key()] = "default";
  return context;
}

std::unique_ptr<Instance> Bench::make(const std::shared_ptr<const PluginLibrary>& library, const MemberName& member,
                                      const Json& changed_options) const {
  bool all_known = true;
  InstanceContext mine = context(*library, member);
  options(*library, member, all_known);
  if (changed_options.is_object()) {
    mine.options.update(changed_options);
    all_known = all_known && changed_options.empty();
  }
  try {
    return std::make_unique<Instance>(library, std::move(mine), services);
  } catch (const Error& error) {
    if (all_known || error.code() != ExitCode::kConfig) throw;
    return nullptr;
  }
}

void Bench::each(const std::shared_ptr<const PluginLibrary>& library,
                 const std::function<void(const MemberName&, std::unique_ptr<Instance>)>& test) const {
  size_t num_tested = 0;
  for (const MemberName& member : library->manifest().members) {
    if (auto instance = make(library, member)) {
      test(member, std::move(instance));
      ++num_tested;
    }
  }
  if (num_tested == 0) throw Skip{"no member can be created without options that only the user knows"};
}

size_t num_entries(const char* folder) {
  size_t count = 0;
  DIR* directory = ::opendir(folder);
  if (directory == nullptr) throw Skip{fmt::format("{} cannot be read", folder)};
  while (const dirent* entry = ::readdir(directory)) count += entry->d_name[0] != '.';
  ::closedir(directory);
  return count;
}

std::span<const Test> tests() {
  static const std::vector<Test> all = [] {
    std::vector<Test> out(file_tests().begin(), file_tests().end());
    out.insert(out.end(), instance_tests().begin(), instance_tests().end());
    return out;
  }();
  return all;
}

}  // namespace chassis::check
