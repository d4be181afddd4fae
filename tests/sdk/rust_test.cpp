// The crate chassis: what a member in Rust receives and returns, and panics, which reach the host as errors.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "chassis/kind/tokenizer.h"
#include "tests/support/fake_host.hpp"

namespace {

using Options = std::map<std::string, std::string>;

class Rust : public testing::Test {
 protected:
  fake::Instance create(const Options& options = {}) { return {host_, plugin_, "tokenizer", "rust_probe", options}; }
  const chassis_tokenizer_t& table(const fake::Instance& instance) {
    return instance.interface<chassis_tokenizer_t>(CHASSIS_TOKENIZER_ID);
  }
  chassis_status_t* encode(const fake::Instance& instance, std::string_view text, uint32_t flags = 0) {
    const chassis_str_t texts[2] = {fake::str("é"), fake::str(text)};
    const chassis_token_sink_t sink = {sizeof sink, 0, &ids_,
                                       [](const chassis_token_sink_t* sink, uint64_t index, const int32_t* ids,
                                          const uint64_t* begin, const uint64_t* end, uint64_t count) {
                                         std::string& out = *static_cast<std::string*>(sink->impl);
                                         out += std::to_string(index) + ":";
                                         for (uint64_t i = 0; i < count; ++i) {
                                           out += " " + std::to_string(ids[i]) + "@" + std::to_string(begin[i]) + "-" +
                                                  std::to_string(end[i]);
                                         }
                                         out += ";";
                                       }};
    ids_.clear();
    return table(instance).encode(instance.self(), texts, 2, flags, &sink);
  }

  fake::Host host_;
  fake::Plugin plugin_{host_, CHASSIS_TEST_BINARY_DIR "/tests/sdk/plugins/rust_probe.so"};
  std::string ids_;
};

TEST_F(Rust, ReadsOptionsOfEveryTypeAndLogs) {
  const auto instance = create({{"count", "9"}, {"flag", "false"}});
  chassis_tokenizer_info_t info{};
  info.struct_size = sizeof info;
  host_.check(table(instance).info(instance.self(), &info));
  EXPECT_EQ(fake::text_of(info.fingerprint), "false 9 0.5 a [1, 2] run.toml:1:1");
  EXPECT_EQ(host_.lines, std::vector<std::string>{"created"});
  host_.missing_services = {CHASSIS_LOG_ID};
  EXPECT_THROW(create(), std::runtime_error);
}

TEST_F(Rust, ReturnsWhatItsTraitReturns) {
  const auto instance = create();
  const chassis_tokenizer_t& t = table(instance);
  host_.check(t.open(instance.self(), fake::str("/a/b")));
  chassis_tokenizer_info_t info{};
  info.struct_size = sizeof info;
  host_.check(t.info(instance.self(), &info));
  EXPECT_EQ(fake::text_of(info.fingerprint), "/a/b");
  EXPECT_EQ(fake::text_of(info.chat_template), "{{ messages }}");
  EXPECT_EQ(info.flags, CHASSIS_TOKENIZER_ADDS_BOS | CHASSIS_TOKENIZER_TRAINS);
  EXPECT_EQ((std::vector<int64_t>{info.bos_id, info.eos_id, info.pad_id, info.unk_id, info.vocab_size}),
            (std::vector<int64_t>{1, -1, -1, -1, 0x110000}));
  EXPECT_EQ(info.struct_size, sizeof info);

  host_.check(encode(instance, "a€"));
  EXPECT_EQ(ids_, "0: 233@0-2;1: 97@0-1 8364@1-4;");
  host_.check(encode(instance, "a", CHASSIS_ENCODE_SPECIAL));
  EXPECT_EQ(ids_, "0: -233@0-2;1: -97@0-1;");

  std::string text;
  const chassis_text_sink_t text_sink = {sizeof text_sink, 0, &text, [](const chassis_text_sink_t* s, chassis_str_t x) {
                                           *static_cast<std::string*>(s->impl) = fake::text_of(x);
                                         }};
  const int32_t ids[] = {'h', 0x20ac}, bad[] = {-1};
  host_.check(t.decode(instance.self(), ids, 2, CHASSIS_DECODE_KEEP_SPECIAL, &text_sink));
  EXPECT_EQ(text, "H€");
  EXPECT_EQ(host_.message(t.decode(instance.self(), bad, 1, 0, &text_sink)), "no character [num_ids=1]");

  chassis_token_t token{};
  token.struct_size = sizeof token;
  host_.check(t.token(instance.self(), 5, &token));
  EXPECT_EQ(fake::text_of(token.text), "<s>");
  EXPECT_EQ(token.flags, CHASSIS_TOKEN_SPECIAL);
  EXPECT_EQ(host_.counts["tokens"], std::vector<std::string>{"id 5"});
  int32_t id = 0;
  host_.check(t.id_of(instance.self(), fake::str("<s>"), &id));
  EXPECT_EQ(id, 1);
  host_.check(t.id_of(instance.self(), fake::str("\xff"), &id));
  EXPECT_EQ(id, -1);
}

TEST_F(Rust, RendersAndTrainsThroughTheSinksOfTheHost) {
  const auto instance = create();
  const chassis_tokenizer_t& t = table(instance);
  std::string text;
  const chassis_chat_sink_t chat_sink = {
      sizeof chat_sink, 0, &text,
      [](const chassis_chat_sink_t* s, chassis_str_t x) { *static_cast<std::string*>(s->impl) += fake::text_of(x); },
      [](const chassis_chat_sink_t* s, const chassis_chat_span_t* span) {
        *static_cast<std::string*>(s->impl) += " span to " + std::to_string(span->end);
      }};
  chassis_chat_t chat = {
      sizeof chat, CHASSIS_CHAT_SPANS, fake::str("[]"), fake::str("t"), fake::str("v"), fake::str("x"), 5};
  host_.check(t.render(instance.self(), &chat, &chat_sink));
  EXPECT_EQ(text, "[]|t|v|x|5|false span to 16");
  chat.flags = 64;
  EXPECT_EQ(host_.message(t.render(instance.self(), &chat, &chat_sink)), "render: unknown flags 0x40");

  struct Source {
    const chassis_host_t* host;
    int num_left, fails_at;
  } source = {host_.table(), 3, 0};
  const chassis_text_source_t texts = {
      sizeof texts, 0, &source, [](const chassis_text_source_t* s, chassis_str_t* out, uint32_t* is_end) {
        Source& source = *static_cast<Source*>(s->impl);
        if (source.num_left == source.fails_at) {
          return source.host->status_new(source.host, CHASSIS_CANCELLED, fake::str("the user stopped it"), nullptr);
        }
        *out = fake::str("ab");
        *is_end = --source.num_left < 0 ? 1 : 0;
        return static_cast<chassis_status_t*>(nullptr);
      }};
  text.clear();
  const chassis_file_sink_t files = {
      sizeof files, 0, &text, [](const chassis_file_sink_t* s, chassis_str_t name, chassis_str_t content) {
        *static_cast<std::string*>(s->impl) += fake::text_of(name) + "=" + fake::text_of(content);
        return static_cast<chassis_status_t*>(nullptr);
      }};
  const chassis_vocabulary_t vocabulary = {sizeof vocabulary, 2, 4096, 5};
  source.fails_at = 1;
  EXPECT_EQ(host_.message(t.train(instance.self(), &vocabulary, &texts, &files)), "the user stopped it");
  EXPECT_EQ(text, "");
  source = {host_.table(), 3, -9};
  host_.check(t.train(instance.self(), &vocabulary, &texts, &files));
  EXPECT_EQ(text, "vocab.txt=4096 5 3ababab");
}

// True if a message says that probe.rs panicked, with these words at its end.
bool tells_place_and(const std::string& message, const std::string& words) {
  return message.starts_with("panicked at ") && message.find("probe.rs:") != std::string::npos &&
         message.ends_with(": " + words);
}

TEST_F(Rust, MakesPanicsErrorsThatNameThePlace) {
  testing::internal::CaptureStderr();
  const auto panicking = create({{"panics_in", "\"encode\""}});
  const std::string told = host_.message(encode(panicking, "x"));
  EXPECT_TRUE(tells_place_and(told, "encode was told to panic")) << told;
  const auto instance = create();
  const std::string index = host_.message(encode(instance, "index"));
  EXPECT_TRUE(tells_place_and(index, "index out of bounds: the len is 0 but the index is 7")) << index;
  const std::string value = host_.message(encode(instance, "value"));
  EXPECT_TRUE(value.ends_with(": a value that is not text")) << value;
  const std::string thread = host_.message(encode(instance, "thread"));
  EXPECT_TRUE(tells_place_and(thread, "in a thread of the library")) << thread;
  host_.check(encode(instance, "it works on"));

  for (const std::string function : {"create", "prepare"}) {
    try {
      create({{"panics_in", '"' + function + '"'}});
      ADD_FAILURE() << function << " does not fail";
    } catch (const std::runtime_error& error) {
      EXPECT_TRUE(tells_place_and(error.what(), function + " was told to panic")) << error.what();
    }
  }
  host_.lines.clear();
  create({{"panics_in", "\"drop\""}});
  ASSERT_EQ(host_.lines.size(), 2u);
  EXPECT_TRUE(host_.lines[1].ends_with("drop was told to panic")) << host_.lines[1];
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(Rust, RefusesWhatBreaksTheContract) {
  const auto instance = create();
  const chassis_tokenizer_t& t = table(instance);
  EXPECT_EQ(instance.self()->get_interface(instance.self(), fake::str("chassis.tokenizer/2")), nullptr);
  EXPECT_EQ(host_.message(encode(instance, "ab\xff")), "text 1 of 2 is not UTF-8 at byte 2");
  EXPECT_EQ(host_.message(table(instance).open(instance.self(), {})), "it needs a directory");
  EXPECT_EQ(host_.message(encode(instance, "a", 6)), "encode: unknown flags 0x6");
  chassis_token_t token{};
  token.struct_size = 8;
  EXPECT_EQ(host_.message(t.token(instance.self(), 1, &token)), "a chassis_token_t of 8 bytes, expected at least 24");
  chassis_instance_t* other = nullptr;
  EXPECT_EQ(host_.message(plugin_.factory().create(host_.table(), fake::str("ops"), fake::str("rust_probe"), &other)),
            "this library has no member ops/rust_probe");
}

// The host may be of another minor: longer structs are filled as far as the plugin knows them.
TEST_F(Rust, WritesNoFurtherThanBothSidesKnow) {
  const auto instance = create();
  struct {
    chassis_token_t token;
    uint64_t later;
  } grown = {{sizeof grown, 0, {}}, 77};
  host_.check(table(instance).token(instance.self(), 1, &grown.token));
  EXPECT_EQ(fake::text_of(grown.token.text), "<s>");
  EXPECT_EQ(grown.later, 77u);
  EXPECT_EQ(grown.token.struct_size, sizeof grown);
}

}  // namespace
