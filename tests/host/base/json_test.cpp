#include "host/base/json.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "host/base/reading.hpp"
#include "tests/support/cpu_seconds.hpp"

namespace chassis {
namespace {

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Json, KeepsTheOrderOfKeys) { EXPECT_EQ(parse_json(R"({"b":1,"a":2})", "x").dump(), R"({"b":1,"a":2})"); }

TEST(Json, RefusesTextThatIsNotJsonWithItsPosition) {
  EXPECT_EQ(message_of([] { parse_json("{\n  \"a\": }", "c.json"); }).substr(0, 14), "c.json:2:8: no");
  EXPECT_NE(message_of([] { parse_json("{} x", "c.json"); }), "no error");
  EXPECT_NE(message_of([] { parse_json("\"\xff\"", "c.json"); }), "no error");
}

TEST(Json, RefusesANumberThatADoubleCannotHold) {
  EXPECT_EQ(message_of([] { parse_json("{\n  \"a\": -1e400}", "c.json"); }),
            "c.json:2:8: the number -1e400 is too large");
  EXPECT_EQ(message_of([] { parse_json(R"({"size": 1e400})", "c.json"); }),
            "c.json:1:10: the number 1e400 is too large");
}

TEST(Json, RefusesDuplicateKeysAndDeepNesting) {
  EXPECT_EQ(message_of([] { parse_json(R"({"a":1,"b":{"a":1},"a":2})", "c.json"); }), "c.json:1:20: duplicate key 'a'");
  EXPECT_EQ(message_of([] { parse_json("{\"x\": \"a\\\": \",\n \"x\" : [{\"x\": 1}]}", "c.json"); }),
            "c.json:2:2: duplicate key 'x'");
  EXPECT_EQ(message_of([] { parse_json(R"({"a":1,"\u0061":2})", "c.json"); }), "c.json: duplicate key 'a'");
  const std::string name(5000, 'k'), twice = "{\"" + name + "\":1,\"" + name + "\":1}";
  EXPECT_LT(message_of([&] { parse_json(twice, "c.json"); }).size(), 400u);
  EXPECT_EQ(message_of([] { parse_json(R"([{"a":1},{"a":2}])", "c.json"); }), "no error");
  EXPECT_NE(message_of([] { parse_json(std::string(100000, '['), "c.json"); }).find("nested deeper"),
            std::string::npos);
}

// The text of an object with keys of 8 digits.
std::string object_of(size_t num_keys) {
  std::string text = "{";
  for (size_t i = 0; i < num_keys; ++i)
    text += (i == 0 ? "\"" : ",\"") + std::to_string(10'000'000 + i) + "\":[{\"a\":" + std::to_string(i) + "}]";
  return text + "}";
}

TEST(Json, AnObjectOfManyKeysTakesLinearTime) {
  const std::string few = object_of(2000), many = object_of(128'000);
  const auto parse = [](const std::string& text) {
    return test::cpu_seconds_of([&] {
      EXPECT_EQ(parse_json(text, "c.json").dump(), text);
      EXPECT_FALSE(json_defect(text));
    });
  };
  const double seconds_of_few = parse(few);
  EXPECT_LT(parse(many), 300 * seconds_of_few) << "64 times the keys; 4000 times the comparisons if all are compared";
}

TEST(Reading, TurnsExceptionsOfLibrariesIntoErrorsThatNameTheFile) {
  const auto error_of = [](auto body) { return message_of([&] { reading("c.json", ExitCode::kStorage, body); }); };
  EXPECT_EQ(error_of([] { Json("x").get<int>(); }), "c.json: unexpected content: type must be number, but is string");
  EXPECT_EQ(error_of([] { (void)std::filesystem::file_size("/nowhere/x"); }),
            "cannot read '/nowhere/x': No such file or directory");
  EXPECT_EQ(error_of([] { throw config_error("as it is"); }), "as it is");
  EXPECT_EQ(reading("c.json", ExitCode::kStorage, [] { return 3; }), 3);
}

TEST(Json, AccessIsTyped) {
  const Json object = parse_json(R"({"i":3,"f":1.5,"s":"x","n":null,"big":18446744073709551615})", "c.json");
  EXPECT_EQ(json_int(object, "i", "c"), 3);
  EXPECT_EQ(json_number(object, "i", "c"), 3.0);
  EXPECT_EQ(json_number(object, "f", "c"), 1.5);
  EXPECT_EQ(json_int_or(object, "n", 7, "c"), 7);
  EXPECT_EQ(json_string_or(object, "none", "d", "c"), "d");
  EXPECT_EQ(message_of([&] { json_int(object, "f", "c"); }), "c: 'f' must be an integer, not number");
  EXPECT_EQ(message_of([&] { json_int(object, "n", "c"); }), "c: 'n' is missing");
  EXPECT_EQ(json_count(object, "i", "c"), 3u);
  const Json negative = parse_json(R"({"i":-1})", "c.json");
  EXPECT_EQ(message_of([&] { json_count(negative, "i", "c"); }), "c: 'i' is -1, expected 0 or more");
  EXPECT_NE(message_of([&] { json_int(object, "big", "c"); }).find("larger than"), std::string::npos);
  EXPECT_EQ(message_of([&] { json_bool(object, "s", "c"); }), "c: 's' must be true or false, not string");
}

}  // namespace
}  // namespace chassis
