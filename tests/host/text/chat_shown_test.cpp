// Parts of conversations that templates leave out are refused, or counted by name. The templates have the structure of
// those of well-known families, and are rendered by the tokenizer "hf".
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "host/base/hash.hpp"
#include "host/data/record_encoder.hpp"
#include "host/data/record_reader.hpp"
#include "host/data/slot_jinja.hpp"
#include "host/service/host_services.hpp"
#include "host/text/slot_template_file.hpp"
#include "host/text/tokenizer_training.hpp"
#include "tests/host/data/support.hpp"
#include "tests/support/cpu_seconds.hpp"

namespace chassis {
namespace {

// A template that writes the roles that it knows, like Qwen2.5's, with tools and their calls.
const std::string kKnownRoles = R"({%- if tools %}
    {{- '<|im_start|>system\n' + (messages[0].content if messages[0].role == 'system' else 'Help.') + '\n<tools>' }}
    {%- for tool in tools %}{{- '\n' ~ (tool | tojson) }}{%- endfor %}
    {{- '\n</tools><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) or (m.role == 'assistant' and not m.tool_calls) %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|im_start|>assistant' + ('\n' + m.content if m.content else '') }}
        {%- for call in m.tool_calls %}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif m.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %})";

// Writes a header with the role, and the trimmed content, like Llama 3's. It has no tools.
const std::string kHeaders = R"({%- for m in messages %}
    {{- '<|im_start|>' + m['role'] + '\n\n' + m['content'] | trim + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n\n' }}{%- endif %})";

// Puts each answer into a generation block.
const std::string kGeneration =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}";

// Cuts the reasoning out of earlier turns, and writes that of the last turn in one form, like Qwen3's.
const std::string kThinking = R"({%- set ns = namespace(last=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- set content = m.content %}
        {%- set thoughts = m.reasoning_content or '' %}
        {%- if '</think>' in content and not thoughts %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last and thoughts %}{{- '<think>\n' + thoughts + '\n</think>\n\n' }}{%- endif %}
        {{- content + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %})";

// Cuts every answer at </think>, and ends the generation prompt in <think>, like DeepSeek R1's.
const std::string kCutting = R"({%- for m in messages %}
    {%- if m.role == 'user' %}{{- '<|im_start|>' + m.content }}{%- endif %}
    {%- if m.role == 'assistant' %}
        {%- set content = m.content %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
        {{- '<|assistant|>' + content + '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|><think>\n' }}{%- endif %})";

// Shows the system message before the question if that is the last message, like Mistral Nemo's.
const std::string kSystemAtTheEnd = R"({%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{%- for m in rest %}
    {%- if m.role == 'user' %}
        {{- '[INST]' + (system + '\n\n' if loop.last and system is defined else '') + m.content + '[/INST]' }}
    {%- else %}
        {{- m.content + '<|im_end|>' }}
    {%- endif %}
{%- endfor %})";

const std::string kTools = R"(,"tools":[{"type":"function","function":{"name":"get_weather","description":"d",)"
                           R"("parameters":{"type":"object","properties":{}}}}])";

std::string row_of(const std::string& messages, const std::string& more = "") {
  return "{\"messages\":[" + messages + "]" + more + "}";
}

std::string turn(const std::string& role, const std::string& content) {
  return "{\"role\":\"" + role + "\",\"content\":\"" + content + "\"}";
}

std::string call_of(const std::string& content, const std::string& arguments = R"({"city":"Lima"})") {
  return R"({"role":"assistant","content":)" + content +
         R"(,"tool_calls":[{"type":"function","function":{"name":"get_weather","arguments":)" + arguments + "}}]}";
}

class ChatShown : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = std::make_unique<Shared>();
    train_tokenizer(shared_->registry, "hf", {.vocab_size = 300},
                    {shared_->folder.write("text.txt", "Some words.\nSome more words.\n")},
                    shared_->folder.path() + "/tokenizer", [](uint64_t, uint64_t, std::string_view) {});
    shared_->tokenizer = std::make_unique<PluginTokenizer>(shared_->registry.open("tokenizer", "hf"),
                                                           shared_->folder.path() + "/tokenizer");
  }
  static void TearDownTestSuite() { shared_.reset(); }

  // The rows as text, with [trained tokens] in brackets.
  std::string encoded(const std::string& source, const std::vector<std::string>& rows) {
    options_.supervised = true;
    options_.chat.template_text = source;
    options_.chat.template_name = source.empty() ? "auto" : "own.jinja";
    options_.chat.stop_ids = {tokenizer().id_of("<|im_end|>")};
    encoder_ = std::make_unique<RecordEncoder>(&tokenizer(), options_);
    DataSetConfig set;
    set.format = DataFormat::kMessages;
    const auto parser = make_row_parser(set, 0);
    std::string all;
    for (const std::string& row : rows) {
      RawRow raw;
      raw.bytes = row;
      raw.line = 7;
      Document document;
      if (!encoder_->encode(parser->parse(raw, "chat.jsonl"), {"chat.jsonl", 7, 0}, document)) {
        all += "(" + encoder_->drop_reason() + ")";
        continue;
      }
      bool inside = false;
      std::vector<int32_t> some;
      const auto flush = [&](bool next) {
        all += tokenizer().decode(some, true) + (next == inside ? "" : next ? "[" : "]");
        some.clear();
        inside = next;
      };
      for (size_t i = 0; i < document.ids.size(); ++i) {
        const bool trained = document.labels.empty() || document.labels[i] != kIgnoreLabel;
        if (trained != inside) flush(trained);
        some.push_back(document.ids[i]);
      }
      flush(false);
    }
    return all;
  }
  std::string encoded(const std::string& source, const std::string& row) {
    return encoded(source, std::vector<std::string>{row});
  }
  std::string refusal(const std::string& source, const std::string& row) {
    return error_of([&] { encoded(source, row); });
  }
  std::map<std::string, uint64_t> changes() const { return encoder_->counts().changes(); }
  // The name of the only change.
  std::string change() const { return changes().size() == 1 ? changes().begin()->first : "not one change"; }
  static PluginTokenizer& tokenizer() { return *shared_->tokenizer; }

  struct Shared {
    Shared() : registry(PluginIndex({{CHASSIS_TEST_PLUGIN_DIR, "test", true, {}}}), policy(), services) {
      services.set_registry(&registry);
    }
    static LoadPolicy policy() {
      LoadPolicy policy;
      policy.pins["hf"] = {sha256_file(CHASSIS_TEST_PLUGIN_DIR "/hf.so"), {}};
      return policy;
    }
    TempFolder folder;
    MetricsStore metrics;
    HostServices services{0, metrics};
    PluginRegistry registry;
    std::unique_ptr<PluginTokenizer> tokenizer;
  };
  static std::unique_ptr<Shared> shared_;
  EncodeOptions options_;
  std::unique_ptr<RecordEncoder> encoder_;
};
std::unique_ptr<ChatShown::Shared> ChatShown::shared_;

TEST_F(ChatShown, AMisspelledRoleThatTheTemplateLeavesOutIsRefused) {
  const auto turns = [](const std::string& role) {
    return row_of(turn("user", "one?") + "," + turn(role, "ONE") + "," + turn("user", "two?") + "," +
                  turn("assistant", "TWO"));
  };
  const std::string text = refusal(kKnownRoles, turns("assistent"));
  EXPECT_TRUE(contains(text, "chat.jsonl:7: messages[1] has the role \"assistent\", and template own.jinja does not"));
  EXPECT_TRUE(contains(text, "tags = { assistant = \"assistent\" } gives it a role that the template knows"));
  EXPECT_TRUE(contains(refusal(kKnownRoles, turns("AI")), "tags = { assistant = \"AI\" } or tags = { user"));
  EXPECT_TRUE(contains(refusal(kKnownRoles, turns("developer")), "tags = { system = \"developer\" }"));
}

TEST_F(ChatShown, AnUnknownRoleThatTheTemplateWritesIsCounted) {
  encoded(kHeaders, row_of(turn("user", "one?") + "," + turn("assistent", "ONE") + "," + turn("assistant", "TWO")));
  EXPECT_TRUE(contains(change(), "messages have the role \"assistent\""));
  EXPECT_TRUE(contains(change(), "if it is a misspelling: tags = { assistant = \"assistent\" }"));
}

TEST_F(ChatShown, AContentIsNotTakenForThatOfAnotherMessage) {
  const std::string row = row_of(turn("user", "yes") + "," + turn("AI", "yes") + "," + turn("user", "yes") + "," +
                                 turn("assistant", "yes"));
  EXPECT_TRUE(contains(refusal(kKnownRoles, row), "messages[1] has the role \"AI\""));
}

TEST_F(ChatShown, ToolCallsAndToolsThatTheTemplateLeavesOutAreRefused) {
  const std::string ask = turn("user", "Weather in Lima?"), result = turn("tool", "20");
  const std::string end = turn("assistant", "It is 20.");
  const std::string beside = row_of(ask + "," + call_of("\"Let me look.\"") + "," + result + "," + end);
  EXPECT_TRUE(contains(refusal(kHeaders, beside), "does not show the tool calls of messages[1]"));
  const std::string empty = row_of(ask + "," + call_of("\"\"") + "," + result + "," + end);
  EXPECT_TRUE(contains(refusal(kHeaders, empty), "does not show the tool calls of messages[1]"));
  const std::string offered = row_of(ask + "," + turn("assistant", "I cannot know."), kTools);
  const std::string text = refusal(kHeaders, offered);
  EXPECT_TRUE(contains(text, "the row offers tools, and template own.jinja does not show them"));
  EXPECT_TRUE(contains(text, "columns = { tools = \"-\" }"));
  EXPECT_TRUE(contains(refusal(kGeneration, beside), "does not show the tool calls of messages[1]"));
  const std::string names = R"({% for m in messages %}<|im_start|>{{ m.role }}
{% for call in m.tool_calls or [] %}{{ call.function.name }}{% endfor %}{{ m.content }}<|im_end|>{% endfor %})";
  EXPECT_TRUE(contains(refusal(names, empty), "does not show the arguments of the tool calls of messages[1]"));
  const std::string python = R"({% for m in messages %}<|im_start|>{{ m.role }}
{% for call in m.tool_calls or [] %}{{ call.function }}{% endfor %}{{ m.content }}<|im_end|>{% endfor %})";
  EXPECT_TRUE(contains(refusal(python, empty), "tool calls of messages[1] as Python spells them"));
  // Without arguments, and with tools, the names are all that a mark can be added to.
  const std::string printed = R"({% if tools %}{{ tools }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.tool_calls %}{{ m.tool_calls }}{% endif %}{{ m.content }}<|im_end|>{% endfor %})";
  EXPECT_TRUE(contains(refusal(printed, row_of(ask + "," + call_of("\"\"", "{}") + "," + result + "," + end)),
                       "writes the tool calls of messages[1] as Python spells them"));
  EXPECT_TRUE(contains(refusal(printed, offered), "writes the tools of the row as Python spells them"));
  const std::string as_json =
      R"({% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{{ m.content }}<|im_end|>{% endfor %})";
  EXPECT_NO_THROW(encoded(as_json, row_of(ask + "," + call_of("\"\"", "{}") + "," + result + "," + end)));
  EXPECT_NO_THROW(encoded(as_json, offered));
  const std::string either = R"({% for m in messages %}<|im_start|>{{ m.role }}
{{ m.tool_calls | tojson if m.tool_calls else m.content }}<|im_end|>{% endfor %})";
  EXPECT_TRUE(contains(refusal(either, beside), "the content of messages[1], which accompanies tool calls"));
  for (const std::string& row : {beside, empty, offered}) EXPECT_NO_THROW(encoded(kKnownRoles, row));
}

TEST_F(ChatShown, TheTemplateOfATrainedTokenizerShowsEverything) {
  const std::string row = row_of(turn("system", "Be brief.") + "," + turn("user", "Weather in Lima?") + "," +
                                     call_of("\"\"") + "," + turn("tool", R"({\"temp\": 20})") + "," +
                                     R"({"role":"assistant","content":"It is 20.","reasoning_content":"Easy."})",
                                 kTools);
  const std::string text = encoded("", row);
  EXPECT_TRUE(contains(text, "<|im_start|>system\nBe brief.\n\n# Tools\n"));
  EXPECT_TRUE(contains(text, "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"get_weather\""));
  EXPECT_TRUE(contains(text,
                       "<|im_start|>assistant\n[<tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
                       "{\"city\": \"Lima\"}}\n</tool_call><|im_end|>]\n"));
  EXPECT_TRUE(contains(text, "<|im_start|>user\n<tool_response>\n{\"temp\": 20}\n</tool_response><|im_end|>\n"));
  EXPECT_TRUE(contains(text, "<|im_start|>assistant\n[<think>\nEasy.\n</think>\n\nIt is 20.<|im_end|>]\n"));
  EXPECT_TRUE(changes().empty());
}

TEST_F(ChatShown, ReasoningInContentsThatTheTemplateCutsIsCountedOrRefused) {
  const std::string first = R"(<think>\ntwo and two\n</think>\n\n4)", second = R"(<think>three and three</think>6)";
  const std::string row = row_of(turn("user", "2+2?") + "," + turn("assistant", first) + "," + turn("user", "3+3?") +
                                 "," + turn("assistant", second));
  const std::string text = encoded(kThinking, {row, row});
  EXPECT_TRUE(contains(text, "<think>\nthree and three\n</think>\n\n6<|im_end|>]"));
  EXPECT_EQ(changes(), (std::map<std::string, uint64_t>{{"the template leaves out the reasoning of answers", 2}}));
  options_.chat.train_on_prompt = true;
  encoded(kThinking, row);
  EXPECT_EQ(encoder_->counts().num_lost_reasoning, 1u);
  options_.chat.train_on_prompt = false;
  encoded(kCutting, row);
  EXPECT_EQ(encoder_->counts().num_lost_reasoning, 2u);
  options_.chat.reasoning = Reasoning::kKeep;
  EXPECT_TRUE(
      contains(refusal(kThinking, row), "leaves out the reasoning of messages[1], and data.reasoning = \"keep\""));
  EXPECT_TRUE(contains(refusal(kCutting, row_of(turn("user", "3+3?") + "," + turn("assistant", second))),
                       "leaves out the reasoning of messages[1], and data.reasoning = \"keep\""));
  EXPECT_NO_THROW(encoded(kHeaders, row));
}

TEST_F(ChatShown, AnAnswerThatDoesNotBeginWhereGenerationDoesIsCounted) {
  encoded(kCutting, row_of(turn("user", "3+3?") + "," + turn("assistant", "6")));
  EXPECT_TRUE(contains(change(),
                       "the generation prompt is \"<|assistant|><think>\\n\", and a row has "
                       "\"<|assistant|>y\" in its place"));
  EXPECT_EQ(changes().begin()->second, 1u);
}

TEST_F(ChatShown, ASystemMessageThatTheTemplateLeavesOutIsRefused) {
  const std::string row = row_of(turn("system", "Answer in French.") + "," + turn("user", "Good morning") + "," +
                                 turn("assistant", "Bonjour"));
  EXPECT_TRUE(contains(refusal(kSystemAtTheEnd, row), "template own.jinja does not show messages[0] (system)"));
  options_.chat.default_system = "Be brief.";
  EXPECT_TRUE(contains(refusal(kSystemAtTheEnd, row_of(turn("user", "Hi") + "," + turn("assistant", "Ho"))),
                       "does not show the system message of data.default_system"));
  EXPECT_NO_THROW(encoded(kKnownRoles, row_of(turn("user", "Hi") + "," + turn("assistant", "Ho"))));
}

// transformers would write "None" here.
TEST_F(ChatShown, ANullContentIsCounted) {
  const std::string source = R"({% for m in messages %}<|im_start|>{{ m.role }}
{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}{{ m.content }}<|im_end|>{% endfor %})";
  const std::string ask = turn("user", "Weather in Lima?"), end = turn("tool", "20") + "," + turn("assistant", "20.");
  const std::string text = encoded(source, row_of(ask + "," + call_of("null") + "," + end));
  EXPECT_EQ(text.find("None"), std::string::npos);
  EXPECT_TRUE(contains(change(), "the content of messages is null, which counts as absent"));
  EXPECT_EQ(changes().begin()->second, 1u);
  encoded(source, row_of(ask + "," + call_of("\"\"") + "," + end));
  EXPECT_TRUE(changes().empty());
}

TEST_F(ChatShown, ARoleThatMakesNoDifferenceIsCounted) {
  const std::string plain = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}";
  encoded(plain, row_of(turn("user", "Hi") + "," + turn("assistant", "Ho")));
  EXPECT_EQ(encoder_->counts().hidden_roles, (std::map<std::string, uint64_t>{{"assistant", 1}, {"user", 1}}));
}

TEST_F(ChatShown, PartsAreJoinedUnlessTheTemplateReadsThem) {
  const std::string parts = R"([{"type":"text","text":"one "},{"type":"text","text":"two"}])";
  const std::string row =
      row_of(R"({"role":"user","content":)" + parts + R"(},{"role":"assistant","content":)" + parts + "}");
  EXPECT_EQ(encoded(kHeaders, row),
            "<|im_start|>user\n\none two<|im_end|><|im_start|>assistant\n\n[one two<|im_end|>]");
  const std::string prints = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}";
  EXPECT_EQ(encoded(prints, row), "<|im_start|>user\none two<|im_end|><|im_start|>assistant\n[one two<|im_end|>]");
  const std::string reads =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for p in m.content %}({{ p.text }}){% endfor %}{% endif %}<|im_end|>{% endfor %}";
  EXPECT_EQ(encoded(reads, row),
            "<|im_start|>user\n(one )(two)<|im_end|><|im_start|>assistant\n([one )(two)<|im_end|>]");
}

TEST_F(ChatShown, ARowOfWhichOnlyAnEndIsTrainedIsRefused) {
  const std::string row = row_of(turn("user", "Hi") + "," + turn("assistant", ""));
  EXPECT_TRUE(contains(refusal(kGeneration, row), "nothing of the row is trained but <|im_end|>"));
  EXPECT_NO_THROW(encoded(kGeneration, row_of(turn("user", "Hi") + "," + turn("assistant", "") + "," +
                                              turn("user", "Hi") + "," + turn("assistant", "x"))));
}

TEST_F(ChatShown, RefusedRowsAreSkippedIfTheUserSaysSo) {
  options_.skips_refused = true;
  const std::string good = row_of(turn("user", "Hi") + "," + turn("assistant", "Ho"));
  const std::string text = encoded(kKnownRoles, {row_of(turn("user", "Hi") + "," + turn("AI", "Ho")), good});
  EXPECT_TRUE(contains(text, "(refused: messages[] has the role \"AI\", and template own.jinja does not show it)"));
  EXPECT_TRUE(contains(text, "[Ho<|im_end|>]"));
  EXPECT_EQ(encoder_->counts().num_rows, 2u);
  EXPECT_EQ(encoder_->counts().dropped.size(), 1u);
}

// The Jinja form of a slot template shows all that the slot template shows, so nothing in it may count as missing.
TEST_F(ChatShown, AConversationOfManyMessagesTakesLinearTime) {
  // One that accepts any text, and one that refuses the marks of system messages.
  const std::string refusing =
      "{% for m in messages %}{% if m.role == 'system' and m.content != 'Be brief.' %}"
      "{{ raise_exception('no') }}{% endif %}<|im_start|>{{ m.role }}\n\n{{ m.content }}"
      "<|im_end|>{% endfor %}";
  for (const std::string& source : {kHeaders, refusing}) {
    const auto seconds_of = [&](size_t num_pairs) {
      std::string messages = turn("system", "Be brief.");
      for (size_t i = 0; i < num_pairs; ++i)
        messages += "," + turn("user", "Question " + std::to_string(i)) + "," + turn("assistant", "It is so.");
      return test::cpu_seconds_of([&] { encoded(source, row_of(messages)); });
    };
    seconds_of(1);  // compiles the template
    const double few = seconds_of(200), many = seconds_of(10'000);
    EXPECT_LT(many, 250 * few) << "50 times the messages; 2500 times the searches if each begins at the first byte";
  }
}

TEST_F(ChatShown, NothingIsMissedInTemplatesThatShowEverything) {
  const std::string system = turn("system", "Be brief."), ask = turn("user", "<tool_response> 1 + 1 </tool_response>");
  const std::string answer = turn("assistant", " 2\\n"), result = turn("tool", R"({\"x\": \"é\\n\"})");
  const std::string id = R"("tool_call_id":"abcdefghi","role":"tool","content":"{\"x\": \"6\\n\"}")";
  std::string call = call_of("null", R"({"a":1,"b":["é\"",{"c":"x"}],"d":{}})");
  call.replace(call.find("{\"type\""), 1, R"({"id":"abcdefghi",)");
  std::string no_arguments = call_of("\"\"", "{}");
  no_arguments.replace(no_arguments.find("{\"type\""), 1, R"({"id":"abcdefghi",)");
  const std::vector<std::string> rows = {
      row_of(ask + "," + answer),
      row_of(system + "," + ask + "," + answer + "," + ask + "," + answer),
      row_of(system + "," + ask + "," + answer, kTools),
      row_of(ask + "," + call + ",{" + id + "}," + answer, kTools),
      row_of(ask + "," + no_arguments + ",{" + id + "},{" + id + "}," + answer),
      row_of(ask + "," + turn("assistant", R"(<think>hm</think>\n2)") + "," + ask + "," + answer)};
  size_t num_shown = 0;
  for (const std::string& name : builtin_template_names()) {
    SCOPED_TRACE(name);
    const auto slots = builtin_slot_template(name);
    const std::string source = slot_template_jinja(*slots, false);
    ChatConfig chat;
    chat.template_name = "own.jinja";
    chat.template_text = source;
    const ChatRenderer renderer(tokenizer(), chat);
    for (const std::string& row : rows) {
      DataSetConfig set;
      set.format = DataFormat::kMessages;
      RawRow raw;
      raw.bytes = row;
      const ChatRecord record = std::get<ChatRecord>(make_row_parser(set, 0)->parse(raw, "chat.jsonl"));
      std::string text;
      try {
        text = renderer.render(record, false).text;
      } catch (const Error&) {
        continue;
      }
      ++num_shown;
      ChatCoverage coverage(renderer);
      for (const bool is_again : {false, true}) {
        for (const Omission& omission : coverage.omissions(record, text))
          EXPECT_EQ(omission.what, Omission::What::kRole) << row << is_again;
      }
    }
  }
  EXPECT_GE(num_shown, 24u);
}

}  // namespace
}  // namespace chassis
