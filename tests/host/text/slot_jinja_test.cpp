// The built-in slot templates converted to Jinja give the same text: with and without system message, tools, reasoning.
#include "host/data/slot_jinja.hpp"

#include <gtest/gtest.h>

#include <memory>

#include "host/base/hash.hpp"
#include "host/data/chat_renderer.hpp"
#include "host/service/host_services.hpp"
#include "host/text/slot_template_file.hpp"
#include "host/text/tokenizer_training.hpp"
#include "tests/host/data/support.hpp"

namespace chassis {
namespace {

Message said_by(std::string role, std::string text) {
  Message message;
  message.role = std::move(role);
  message.content.push_back({std::move(text), std::nullopt});
  return message;
}

struct Example {
  std::vector<Message> messages;
  std::string tools;
};

std::vector<Example> conversations() {
  const std::vector<Message> turns = {said_by("user", " 1 + 1? "), said_by("assistant", " 2\n"),
                                      said_by("user", "\"Why\" {{ x }} 'é'?"), said_by("assistant", "So\\n.")};
  std::vector<Example> all = {{turns, ""}};
  std::vector<Message> with_system = turns;
  with_system.insert(with_system.begin(), said_by("system", " Be brief. "));
  all.push_back({with_system, ""});
  std::vector<Message> thinking = turns;
  for (const size_t i : {1u, 3u}) thinking[i].reasoning = "hm " + std::to_string(i);
  all.push_back({thinking, ""});
  const std::string tools = R"([{"type":"function","function":{"name":"add","description":"Adds é <b>"}},)"
                            R"({"type":"function","function":{"name":"sub"}}])";
  all.push_back({turns, tools});
  all.push_back({with_system, tools});
  Message call = said_by("assistant", "");
  call.content.clear();
  call.tool_calls_json =
      R"([{"id": "abcdefghi", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2, "é"]}}}])";
  Message result = said_by("tool", "{\"x\": 6}");
  result.tool_call_id = "abcdefghi";
  all.push_back({{said_by("user", "Sum?"), call, result, result, said_by("assistant", "Six")}, tools});
  Message both = said_by("assistant", "I add.");
  both.tool_calls_json = call.tool_calls_json;
  all.push_back({{said_by("user", "Sum?"), both, result}, tools});
  return all;
}

TEST(SlotTemplatesAsJinja, RenderTheSameText) {
  const TempFolder folder;
  MetricsStore metrics;
  HostServices services{0, metrics};
  LoadPolicy policy;
  policy.pins["hf"] = {sha256_file(CHASSIS_TEST_PLUGIN_DIR "/hf.so"), {}};
  PluginRegistry registry(PluginIndex({{CHASSIS_TEST_PLUGIN_DIR, "test", true, {}}}), std::move(policy), services);
  services.set_registry(&registry);
  const std::string text = folder.write("text.txt", "Some words.\nSome more words.\n");
  train_tokenizer(registry, "hf", {.vocab_size = 300}, {text}, folder.path() + "/tokenizer",
                  [](uint64_t, uint64_t, std::string_view) {});
  const PluginTokenizer tokenizer(registry.open("tokenizer", "hf"), folder.path() + "/tokenizer");
  const std::string end = tokenizer.token(tokenizer.eos_id()).text;

  size_t num_equal = 0;
  for (const std::string& name : builtin_template_names()) {
    const auto slots = builtin_slot_template(name);
    for (const bool keep : {false, true}) {
      const std::string jinja = slot_template_jinja(*slots, keep);
      size_t index = 0;
      for (const Example& example : conversations()) {
        SCOPED_TRACE(name + ", conversation " + std::to_string(index++));
        for (const bool prompt : {false, true}) {
          std::string expected, found;
          const auto render = [&] {
            return render_slots(*slots, {end, end},
                                {.messages = example.messages,
                                 .tools_json = example.tools,
                                 .keep_reasoning = keep,
                                 .generation_prompt = prompt})
                .text;
          };
          const auto render_jinja = [&] {
            return tokenizer
                .render({.messages_json = messages_json(example.messages),
                         .tools_json = example.tools,
                         .template_text = jinja,
                         .generation_prompt = prompt})
                .text;
          };
          try {
            expected = render();
          } catch (const Error&) {
            EXPECT_THROW(render_jinja(), Error);
            continue;
          }
          EXPECT_NO_THROW(found = render_jinja());
          EXPECT_EQ(found, expected);
          ++num_equal;
        }
      }
    }
  }
  EXPECT_GE(num_equal, 120u) << "the others have no tools";
}

}  // namespace
}  // namespace chassis
