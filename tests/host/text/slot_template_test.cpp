// The built-in slot templates give the text of the templates that the families publish; the expected texts follow their
// tokenizer_config.json. Also mistakes in templates of users.
#include "host/data/slot_template.hpp"

#include <gtest/gtest.h>

#include "host/text/slot_template_file.hpp"
#include "tests/host/data/support.hpp"

namespace chassis {
namespace {

struct Row {
  std::vector<Message> messages;
  std::string tools;
};

Message said(std::string role, std::string text) {
  Message message;
  message.role = std::move(role);
  message.content.push_back({std::move(text), std::nullopt});
  return message;
}

std::string rendered(const std::string& name, const Row& row, bool generation_prompt = false, bool keep = false) {
  const auto slots = builtin_slot_template(name);
  const RenderedChat chat = render_slots(*slots, {"<bos>", "<eos>"},
                                         {.messages = row.messages,
                                          .tools_json = row.tools,
                                          .keep_reasoning = keep,
                                          .generation_prompt = generation_prompt});
  for (const ChatSpan& span : chat.spans) {
    const std::string shown = chat.text.substr(span.begin, span.end - span.begin);
    const std::string text = row.messages[span.message].text();
    if (span.leaf == ChatLeaf::kContent && row.tools.empty() && text.find(shown) == std::string::npos)
      ADD_FAILURE() << "span \"" << shown << "\" of \"" << text << "\"";
  }
  return chat.text;
}

const Row kPlain{{said("user", " 1+1? "), said("assistant", " 2\n"), said("user", "Why?"), said("assistant", "So.")},
                 ""};
const Row kSystem{{said("system", "Be brief."), said("user", "Hi"), said("assistant", "Yo")}, ""};

Row with_tools() {
  Message call = said("assistant", "");
  call.content.clear();
  call.tool_calls_json =
      R"([{"id": "abcdefghi", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2, 3]}}}])";
  Message result = said("tool", "6");
  result.tool_call_id = "abcdefghi";
  return {{said("user", "Sum?"), call, result, said("assistant", "Six")},
          R"([{"type":"function","function":{"name":"add","description":"Adds é"}}])"};
}

TEST(SlotTemplates, Chatml) {
  EXPECT_EQ(
      rendered("chatml", kPlain, true),
      "<|im_start|>user\n 1+1? <|im_end|>\n<|im_start|>assistant\n 2\n<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
      "<|im_start|>assistant\nSo.<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(rendered("chatml", kSystem),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
            "Yo<|im_end|>\n");
}

// Qwen2.5-Instruct and Qwen3.
TEST(SlotTemplates, ChatmlWithTools) {
  const std::string tools =
      "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
      "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
      "{\"type\": \"function\", \"function\": {\"name\": \"add\", \"description\": \"Adds é\"}}\n</tools>\n\n"
      "For each function call, return a json object with function name and arguments within <tool_call></tool_call> "
      "XML "
      "tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n";
  const std::string talk =
      "<|im_start|>user\nSum?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n"
      "{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2, 3]}}\n</tool_call><|im_end|>\n"
      "<|im_start|>user\n<tool_response>\n6\n</tool_response><|im_end|>\n<|im_start|>assistant\nSix<|im_end|>\n";
  Row row = with_tools();
  EXPECT_EQ(rendered("chatml", row), "<|im_start|>system\n" + tools + talk);
  row.messages.insert(row.messages.begin(), said("system", "Be brief."));
  EXPECT_EQ(rendered("chatml", row), "<|im_start|>system\nBe brief.\n\n" + tools + talk);
}

TEST(SlotTemplates, ChatmlGroupsToolResultsAndCalls) {
  Row row = with_tools();
  row.tools.clear();
  row.messages[1].content.push_back({"Wait.", std::nullopt});
  row.messages[1].tool_calls_json =
      R"([{"function": {"name": "f", "arguments": {}}}, {"function": {"name": "g", "arguments": {}}}])";
  row.messages.insert(row.messages.begin() + 3, said("tool", "7"));
  EXPECT_EQ(
      rendered("chatml", row),
      "<|im_start|>user\nSum?<|im_end|>\n<|im_start|>assistant\nWait.\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
      "{}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call><|im_end|>\n"
      "<|im_start|>user\n<tool_response>\n6\n</tool_response>\n<tool_response>\n7\n</tool_response><|im_end|>\n"
      "<|im_start|>assistant\nSix<|im_end|>\n");
}

// Qwen3 writes the reasoning of the turns after the last question.
TEST(SlotTemplates, ChatmlWithReasoning) {
  Row row = kPlain;
  row.messages[1].reasoning = "r1";
  row.messages[3].reasoning = "r2";
  EXPECT_TRUE(contains(rendered("chatml", row), "assistant\n 2\n<|im_end|>"));
  EXPECT_TRUE(contains(rendered("chatml", row), "assistant\n<think>\nr2\n</think>\n\nSo.<|im_end|>"));
  EXPECT_TRUE(contains(rendered("chatml", row, false, true), "assistant\n<think>\nr1\n</think>\n\n 2\n<|im_end|>"));
}

TEST(SlotTemplates, Llama3) {
  EXPECT_EQ(rendered("llama3", kPlain, true),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n1+1?<|eot_id|><|start_header_id|>assistant"
            "<|end_header_id|>\n\n2<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nSo.<|eot_id|><|start_header_id|>assistant"
            "<|end_header_id|>\n\n");
  EXPECT_EQ(rendered("llama3", kSystem),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user"
            "<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nYo<|eot_id|>");
}

TEST(SlotTemplates, Llama3Calls) {
  EXPECT_TRUE(
      contains(rendered("llama3", with_tools()),
               "<|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"add\", \"parameters\": {\"a\": 1, "
               "\"b\": [2, 3]}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n\"6\"<|eot_id|>"));
}

TEST(SlotTemplates, Llama4) {
  EXPECT_EQ(
      rendered("llama4", kSystem, true),
      "<|begin_of_text|><|header_start|>system<|header_end|>\n\nBe brief.<|eot|><|header_start|>user<|header_end|>"
      "\n\nHi<|eot|><|header_start|>assistant<|header_end|>\n\nYo<|eot|><|header_start|>assistant<|header_end|>\n\n");
}

TEST(SlotTemplates, Mistral) {
  EXPECT_EQ(rendered("mistral", kPlain, true), "<bos>[INST]  1+1? [/INST] 2<eos>[INST] Why?[/INST] So.<eos>");
  EXPECT_EQ(rendered("mistral", kSystem), "<bos>[INST] Be brief.\n\nHi[/INST] Yo<eos>");
  Row two = kPlain;
  two.messages.insert(two.messages.begin(), said("system", "S"));
  EXPECT_EQ(rendered("mistral", two), "<bos>[INST]  1+1? [/INST] 2<eos>[INST] S\n\nWhy?[/INST] So.<eos>");
}

TEST(SlotTemplates, MistralWithTools) {
  EXPECT_EQ(
      rendered("mistral", with_tools()),
      "<bos>[AVAILABLE_TOOLS] [{\"type\": \"function\", \"function\": {\"name\": \"add\", \"description\": \"Adds "
      "é\"}}]"
      "[/AVAILABLE_TOOLS][INST] Sum?[/INST][TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2, "
      "3]}, \"id\": \"abcdefghi\"}]<eos>[TOOL_RESULTS] {\"content\": 6, \"call_id\": \"abcdefghi\"}[/TOOL_RESULTS] "
      "Six<eos>");
}

TEST(SlotTemplates, Deepseek) {
  EXPECT_EQ(rendered("deepseek", kSystem, true), "<bos>Be brief.\n\nUser: Hi\n\nAssistant: Yo<eos>Assistant:");
}

TEST(SlotTemplates, Gemma) {
  EXPECT_EQ(rendered("gemma", kPlain, true),
            "<bos><start_of_turn>user\n1+1?<end_of_turn>\n<start_of_turn>model\n2<end_of_turn>\n<start_of_turn>user\n"
            "Why?<end_of_turn>\n<start_of_turn>model\nSo.<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(rendered("gemma", kSystem),
            "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nYo<end_of_turn>\n");
}

TEST(SlotTemplates, Alpaca) {
  EXPECT_EQ(rendered("alpaca", {{said("user", "Hi"), said("assistant", "Yo")}, ""}),
            "<bos>Below is an instruction that describes a task. Write a response that appropriately completes the "
            "request.\n\n### Instruction:\nHi\n\n### Response:\nYo<eos>\n\n");
  EXPECT_TRUE(contains(rendered("alpaca", kSystem), "<bos>Be brief.\n\n### Instruction:\n"));
}

TEST(SlotTemplates, Plain) { EXPECT_EQ(rendered("plain", kSystem), "<bos>Be brief.\nHi\nYo<eos>\n"); }

TEST(SlotTemplates, AllOfThemAreBuiltIn) {
  EXPECT_EQ(builtin_template_names(), (std::vector<std::string>{"alpaca", "chatml", "deepseek", "gemma", "llama3",
                                                                "llama4", "mistral", "plain"}));
  EXPECT_EQ(builtin_slot_template("nothing"), nullptr);
}

TEST(SlotTemplates, RefuseWhatTheyCannotWrite) {
  const auto refusal = [](const char* name, const Row& row) { return error_of([&] { rendered(name, row); }); };
  EXPECT_TRUE(
      contains(refusal("gemma", with_tools()), "the row offers tools, and template gemma has no place for them"));
  Row row = with_tools();
  row.tools.clear();
  EXPECT_TRUE(contains(refusal("gemma", row), "messages[1] calls a tool, which template gemma cannot write"));
  EXPECT_TRUE(contains(refusal("plain", {{said("tool", "x")}, ""}), "it has system, user, assistant"));
  EXPECT_TRUE(contains(refusal("mistral", {{said("user", "x"), said("system", "y")}, ""}), "it can only be the first"));
  EXPECT_TRUE(contains(refusal("gemma", {{said("system", "y"), said("assistant", "x")}, ""}), "there is none"));
  row.messages[2].tool_call_id.clear();
  EXPECT_TRUE(contains(refusal("mistral", row), "messages[2] has no tool_call_id"));
}

TEST(SlotTemplateFile, MistakesHaveAPosition) {
  const auto refusal = [](const std::string& text) { return error_of([&] { parse_slot_template(text, "my.toml"); }); };
  const std::string rest = "user = \"{{content}}\"\nassistant = \"{{content}}\"\nstop = [\"</s>\"]\n";
  EXPECT_NO_THROW(parse_slot_template(rest, "my.toml"));
  EXPECT_TRUE(
      contains(refusal(rest + "assistent_open = \"x\"\n"),
               "my.toml:4:1: unknown key 'assistent_open' in a chat template (did you mean 'assistant_open'?)"));
  EXPECT_TRUE(contains(refusal(rest + "bos = 3\n"), "my.toml:4:7: bos must be a string, not an integer"));
  EXPECT_TRUE(contains(refusal(rest + "system = \"{{contents}}\"\n"),
                       "my.toml:4:10: system: {{contents}} is not a placeholder here; there are {{content}}, {{bos}}"));
  EXPECT_TRUE(contains(refusal(rest + "system = \"x\"\n"), "system must have {{content}} once, it has it 0 times"));
  EXPECT_TRUE(contains(refusal(rest + "bos = \"{{bos\"\n"), "\"{{\" is not closed"));
  EXPECT_TRUE(contains(refusal(rest + "strip = [\"model\"]\n"), "my.toml:4:10: strip has the roles"));
  EXPECT_TRUE(contains(refusal(rest + "system_place = \"top\"\n"), "is not one of \"own\", \"first_user\""));
  EXPECT_TRUE(contains(refusal("user = \"{{content}}\"\nassistant = \"{{content}}\"\n"), "the key `stop` is missing"));
  EXPECT_TRUE(contains(refusal("stop = [\"x\"]\nassistant = \"{{content}}\"\n"), "the key `user` is missing"));
  EXPECT_TRUE(contains(refusal(rest + "default_system = \"x\"\n"), "default_system needs the key `system`"));
  EXPECT_TRUE(contains(refusal("user = \n"), "my.toml:1:"));
}

}  // namespace
}  // namespace chassis
