// A locked run may use the plugins that plugins.lock lists, and the libraries that they bring.
#include "host/session/run_plugins.hpp"

#include <gtest/gtest.h>

#include <string>

#include "host/base/error.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

class PluginsLock : public testing::Test {
 protected:
  // The policy of a locked run whose directory has this list of plugins.
  LoadPolicy policy(const std::string& plugins, const std::vector<std::string>& overrides = {}) {
    test::write_text(scratch_ / "plugins.lock", "{\"plugins_lock\": 1, \"plugins\": [" + plugins + "]}");
    std::vector<std::string> all = {"plugins.locked=true", "run.output_dir=" + scratch_.path()};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return load_policy(load_config_text("schema_version = 1\n", "a.toml", all).settings());
  }
  std::string refusal(const std::string& plugins, const std::vector<std::string>& overrides = {}) {
    try {
      policy(plugins, overrides);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
  static std::string hash(char digit) { return std::string(64, digit); }
  static std::string plugin(const std::string& id, char digit, const std::string& more = "") {
    return "{\"id\": \"" + id + "\", \"version\": \"1.0\", \"sha256\": \"" + hash(digit) + "\"" + more + "}";
  }
  static std::string libraries(const std::string& name, char digit) {
    return ", \"libraries\": [{\"name\": \"" + name + "\", \"sha256\": \"" + hash(digit) + "\"}]";
  }

  test::ScratchDirectory scratch_;
};

TEST_F(PluginsLock, PinsPluginsAndTheLibrariesThatTheyBring) {
  const LoadPolicy found =
      policy(plugin("alone", 'a') + ", " + plugin("borrower", 'b', libraries("libhelper.so", 'c')));
  EXPECT_EQ(found.only_pinned, scratch_ / "plugins.lock") << "no other library may be used";
  ASSERT_EQ(found.pins.size(), 3u);
  EXPECT_EQ(found.pins.at("alone").sha256, hash('a'));
  EXPECT_EQ(found.pins.at("borrower").sha256, hash('b'));
  EXPECT_EQ(found.pins.at("borrower/libhelper.so").sha256, hash('c'));
}

TEST_F(PluginsLock, KeepsTheLibrariesOfTwoVersionsApart) {
  std::string newer = plugin("borrower", 'd', libraries("libhelper.so", 'e'));
  newer.replace(newer.find("1.0"), 3, "2.0");
  const LoadPolicy found = policy(plugin("borrower", 'b', libraries("libhelper.so", 'c')) + ", " + newer);
  EXPECT_EQ(found.pins.at("borrower@1.0/libhelper.so").sha256, hash('c'));
  EXPECT_EQ(found.pins.at("borrower@2.0/libhelper.so").sha256, hash('e'));
}

TEST_F(PluginsLock, IsRefusedIfItContradictsAPinOrIsNoList) {
  const std::string lock = plugin("borrower", 'b', libraries("libhelper.so", 'c'));
  EXPECT_HAS(refusal(lock, {"plugins.pin={ \"borrower/libhelper.so\" = \"sha256:" + hash('9') + "\" }"}),
             "plugins.pin.borrower/libhelper.so is sha256:" + hash('9') + ", and '" + (scratch_ / "plugins.lock") +
                 "' says sha256:" + hash('c'));
  EXPECT_HAS(refusal(plugin("borrower", 'b', ", \"libraries\": 3")), "'libraries' of plugin borrower is not a list");
}

}  // namespace
}  // namespace chassis
