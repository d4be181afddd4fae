// The registry: option schemas, creation of instances, wrapped members, the lock.
#include "host/plugin/registry.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "host/base/hash.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "tests/host/plugin/fake_services.hpp"
#include "tests/host/plugin/plugin_files.hpp"

namespace chassis {
namespace {

class Registry : public testing::Test {
 protected:
  Registry() { policy_.cache_folder = scratch_ / "cache"; }
  PluginRegistry registry() {
    return PluginRegistry(PluginIndex({{fixture("good"), "test", true, {}}, {fixture("failing"), "test", true, {}}}),
                          policy_, services_);
  }

  ScratchFolder scratch_;
  LoadPolicy policy_;
  FakeServices services_;
};

TEST_F(Registry, ReadsTheOptionSchema) {
  PluginRegistry plugins = registry();
  const std::vector<OptionSpec>& specs = plugins.option_specs("ops", "plain");
  ASSERT_EQ(specs.size(), 8u);
  EXPECT_EQ(specs[1].name, "block");
  EXPECT_EQ(specs[1].type, OptionType::kInt);
  EXPECT_EQ(specs[1].default_json, "64");
  EXPECT_EQ(specs[1].min, 1.0);
  EXPECT_EQ(specs[1].max, 4096.0);
  EXPECT_EQ(specs[1].doc, "rows of a block");
  EXPECT_FALSE(specs[1].required);
  EXPECT_EQ(specs[3].choices, (std::vector<std::string>{"red", "green"}));
  EXPECT_TRUE(plugins.option_specs("model", "needy")[0].required);
}

TEST_F(Registry, RefusesInvalidSchemas) {
  PluginRegistry plugins = registry();
  EXPECT_TEXT(thrown_by([&] { plugins.option_specs("ops", "bad_default"); }).text,
              "plugin 'failing' 0.1.0: option 'rows' has the default \"many\", expected an integer");
  EXPECT_TEXT(thrown_by([&] { plugins.option_specs("ops", "two_of_a_name"); }).text, "has two options 'rows'");
  EXPECT_TEXT(thrown_by([&] { plugins.option_specs("ops", "bad_range"); }).text,
              "has the default 9, expected between 1 and 8");
}

TEST_F(Registry, OpensInnerMembersWithTheirOptions) {
  PluginRegistry plugins = registry();
  const auto inner = plugins.open_inner("ops", "plain", R"({"block": 128})", {"ops/wrapper"});
  EXPECT_EQ(inner->state(), InstanceState::kActive);
  EXPECT_EQ(services_.last_options["block"], 128);
  EXPECT_EQ(inner->context().origins.at("block"), "the options that ops/wrapper gives to ops/plain");
  EXPECT_EQ(inner->context().opened_by, (std::vector<std::string>{"ops/wrapper"}));
  plugins.open_inner("model", "needy", R"({"folder": "a"})", {"ops/wrapper"});
  EXPECT_EQ(services_.last_options["folder"], "a") << "an option without a default";
  EXPECT_TEXT(thrown_by([&] { plugins.open_inner("model", "needy", "", {"ops/wrapper"}); }).text, "'folder'");
  const auto refusal = [&](const char* options) {
    return thrown_by([&] { plugins.open_inner("ops", "plain@1.2.3", options, {"ops/wrapper"}); }).text;
  };
  EXPECT_TEXT(refusal(R"({"blok": 1})"), "has no option 'blok'");
  EXPECT_TEXT(refusal(R"({"block": 0})"), "block");
  EXPECT_TEXT(refusal("[1]"), "the options that ops/wrapper gives to ops/plain are not a JSON object");
  EXPECT_TEXT(refusal("{"), "the options that ops/wrapper gives to ops/plain");
}

TEST_F(Registry, RefusesMembersThatWrapThemselves) {
  PluginRegistry plugins = registry();
  EXPECT_TEXT(thrown_by([&] {
                plugins.open_inner("ops", "plain@1.2.3", "", {"ops/a", "ops/plain", "ops/b"});
              }).text,
              "ops/plain would wrap itself: ops/plain wraps ops/b, which wraps ops/plain");
}

TEST_F(Registry, CreatesInstancesWithTheirOptions) {
  PluginRegistry plugins = registry();
  const auto a = plugins.create_default("ops", "plain");
  EXPECT_EQ(services_.last_options["block"], 64);
  EXPECT_EQ(a->context().origins.at("block"), "default");
  Json options = a->context().options;
  options["block"] = 128;
  const auto b = plugins.create("ops", "plain", options, {{"block", "run.toml:3:1"}});
  EXPECT_EQ(services_.last_options["block"], 128);
  EXPECT_EQ(b->context().origins.at("block"), "run.toml:3:1");
  EXPECT_EQ(&a->library(), &b->library());
}

TEST_F(Registry, RefusesOptionsOutsideTheSchema) {
  PluginRegistry plugins = registry();
  const auto instance = plugins.create_default("ops", "plain");
  const auto refusal = [&](const char* key, const Json& value) {
    Json options = instance->context().options;
    options[key] = value;
    const Thrown thrown = thrown_by([&] { plugins.create("ops", "plain", options); });
    EXPECT_EQ(thrown.code, ExitCode::kConfig);
    return thrown.text;
  };
  EXPECT_TEXT(refusal("block", 0), "option 'block' is 0, expected between 1 and 4096");
  EXPECT_TEXT(refusal("block", 1.5), "option 'block' is 1.5, expected an integer");
  EXPECT_TEXT(refusal("alpha", "x"), "option 'alpha' is \"x\", expected a number");
  EXPECT_TEXT(refusal("colour", "blue"), "option 'colour' is \"blue\", expected \"red\" or \"green\"");
  EXPECT_TEXT(refusal("sizes", Json::array({1, 9})), "option 'sizes' is [1,9], expected between 1 and 8");
  EXPECT_TEXT(refusal("names", Json::array({1})), "expected a list of strings");
  EXPECT_TEXT(refusal("extra", 3), "expected a table");
  EXPECT_TEXT(refusal("speed", 3), "has no option 'speed'");
  EXPECT_TEXT(thrown_by([&] { plugins.create("ops", "plain", Json::object()); }).text, "option 'fast' is not set");
  EXPECT_TEXT(thrown_by([&] { plugins.create_default("model", "needy"); }).text, "option 'folder' has no default");
}

TEST_F(Registry, LoadsOnlyUsedLibraries) {
  PluginRegistry plugins = registry();
  EXPECT_TRUE(plugins.lock()["plugins"].empty());
  plugins.create_default("ops", "plain");
  const Json lock = plugins.lock();
  ASSERT_EQ(lock["plugins"].size(), 1u);
  const Json& entry = lock["plugins"][0];
  EXPECT_EQ(entry["id"], "plain");
  EXPECT_EQ(entry["version"], "1.2.3");
  EXPECT_EQ(entry["path"], fixture("good/plain.so"));
  EXPECT_EQ(entry["sha256"], sha256_file(fixture("good/plain.so")));
  EXPECT_EQ(entry["abi_built"], "0.20");
  EXPECT_EQ(entry["abi_negotiated"], "0.20");
  EXPECT_EQ(entry["tier"], "T0");
  EXPECT_EQ(entry["members"], Json::array({"ops/plain"}));
  EXPECT_EQ(lock["host"]["torch"], "2.11.0");
}

// `--locked` refuses a run in which one of them is another file: tests/host/session/run_plugins_test.cpp.
TEST_F(Registry, ListsTheLibrariesThatAPluginBrings) {
  for (const char* name : {"borrower.so", "liblender.so", "libinner_lender.so"})
    std::filesystem::copy(fixture("borrower/" + std::string(name)), scratch_ / name);
  PluginRegistry plugins(PluginIndex({{scratch_.path(), "test", true, {}}}), policy_, services_);
  plugins.create_default("ops", "borrower");
  const Json lock = plugins.lock();
  ASSERT_EQ(lock["plugins"].size(), 1u);
  const auto listed = [&](const std::string& name) {
    return Json({{"name", name}, {"path", scratch_ / name}, {"sha256", sha256_file(scratch_ / name)}});
  };
  EXPECT_EQ(lock["plugins"][0]["libraries"], Json::array({listed("liblender.so"), listed("libinner_lender.so")}));
}

TEST_F(Registry, RefusesAPluginWhoseRequiredServiceIsMissing) {
  services_.offered.erase(CHASSIS_OPTIONS_ID);
  PluginRegistry plugins = registry();
  EXPECT_TEXT(thrown_by([&] { plugins.create_default("ops", "plain"); }).text,
              "requires the service chassis.options/1");
  EXPECT_TRUE(plugins.lock()["plugins"].empty());
}

TEST_F(Registry, RefusesAPluginThatChangesTheProcessAndSetsItBack) {
  write_file_atomic(scratch_ / "side_effects.so", read_file(fixture("bad/side_effects.so")));
  const ProcessSettings before = read_process_settings();
  const std::string refused = "plugin 'side_effects' 0.1.0 changed ";
  const std::pair<const char*, const char*> effects[] = {
    {"umask", "the umask from 0"},
    {"folder", "the working directory from "},
    {"rounding", "the rounding of floating-point numbers from nearest to upward"},
#if defined(__x86_64__)
    {"denormals", "the flush of denormals to zero from off to on"},
#endif
    {"signal", "the handler of SIGTERM from the default to a function of plugin 'side_effects' 0.1.0"}
  };
  for (const auto& [effect, text] : effects) {
    ::setenv("SIDE_EFFECT", effect, 1);
    PluginRegistry plugins(PluginIndex({{scratch_.path(), "test", true, {}}}), policy_, services_);
    const Thrown thrown = thrown_by([&] { plugins.create_default("ops", "side_effects"); });
    ::unsetenv("SIDE_EFFECT");
    EXPECT_EQ(thrown.code, ExitCode::kPlugin) << effect;
    EXPECT_TEXT(thrown.text, refused + text);
    EXPECT_TEXT(thrown.text, "while it was created");
    EXPECT_NO_THROW(require_process_settings(before, "", "")) << effect;
  }
}

TEST_F(Registry, CountsPinsWithoutAPlugin) {
  log::reset_counted_warnings();
  policy_.pins["fsdp2"] = parse_pin("fsdp2", "sha256:" + std::string(64, '0'), {});
  registry();
  ASSERT_FALSE(counted_warnings().empty());
  EXPECT_EQ(counted_warnings()[0].first, "pins without a plugin");
}

}  // namespace
}  // namespace chassis
