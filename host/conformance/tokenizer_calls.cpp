#include "host/conformance/tokenizer_calls.hpp"

#include <fmt/core.h>

#include "host/plugin/call.hpp"
#include "host/plugin/status.hpp"
#include "host/plugin/text_sink.hpp"

namespace chassis::tokenizer_calls {
namespace {

void expect_ok(chassis_status_t* status) {
  if (status == nullptr) return;
  Refused refused{status_code(status), status_text(status)};
  status_release(status);
  if (refused.text.starts_with("no message, status ")) refused.text.clear();
  throw refused;
}

}  // namespace

void open(const TokenizerSubject& subject, const std::string& directory) {
  const PluginCall call(call_site(subject.label), "open");
  if (subject.table->open != nullptr) expect_ok(subject.table->open(subject.self, str_of(directory)));
}

chassis_tokenizer_info_t info(const TokenizerSubject& subject) {
  chassis_tokenizer_info_t info{};
  info.struct_size = sizeof info;
  info.bos_id = info.eos_id = info.pad_id = info.unk_id = -1;
  const PluginCall call(call_site(subject.label), "info");
  throw_if_failed(subject.table->info(subject.self, &info), subject.label);
  return info;
}

std::vector<Encoding> encode_batch(const TokenizerSubject& subject, const std::vector<std::string>& texts,
                                   uint32_t flags) {
  std::vector<chassis_str_t> views;
  for (const std::string& text : texts) views.push_back(str_of(text));
  struct Sink {
    std::vector<Encoding> encodings;
    std::string fault;
  } kept;
  const chassis_token_sink_t sink = {sizeof sink, 0, &kept,
                                     [](const chassis_token_sink_t* self, uint64_t index, const int32_t* ids,
                                        const uint64_t* begin, const uint64_t* end, uint64_t count) {
                                       Sink& kept = *static_cast<Sink*>(self->impl);
                                       if (index != kept.encodings.size())
                                         kept.fault = fmt::format("call {} of the sink is for text {}",
                                                                  kept.encodings.size(), index);
                                       Encoding& encoding = kept.encodings.emplace_back();
                                       if (count == 0) return;
                                       encoding.ids.assign(ids, ids + count);
                                       encoding.begin.assign(begin, begin + count);
                                       encoding.end.assign(end, end + count);
                                     }};
  const PluginCall call(call_site(subject.label), "encode");
  expect_ok(subject.table->encode(subject.self, views.data(), views.size(), flags, &sink));
  if (kept.fault.empty() && kept.encodings.size() != texts.size())
    kept.fault = fmt::format("encode calls the sink {} times for {} texts", kept.encodings.size(), texts.size());
  if (!kept.fault.empty()) throw Refused{0, kept.fault, true};
  return std::move(kept.encodings);
}

Encoding encode(const TokenizerSubject& subject, const std::string& text, uint32_t flags) {
  return encode_batch(subject, {text}, flags).front();
}

std::string decode(const TokenizerSubject& subject, const std::vector<int32_t>& ids, uint32_t flags) {
  TextSink sink;
  const PluginCall call(call_site(subject.label), "decode");
  expect_ok(subject.table->decode(subject.self, ids.data(), ids.size(), flags, sink.get()));
  return sink.take();
}

TokenText token(const TokenizerSubject& subject, int32_t id) {
  chassis_token_t out{};
  out.struct_size = sizeof out;
  const PluginCall call(call_site(subject.label), "token");
  expect_ok(subject.table->token(subject.self, id, &out));
  return {std::string(view_of(out.text)), (out.flags & CHASSIS_TOKEN_SPECIAL) != 0,
          (out.flags & CHASSIS_TOKEN_ADDED) != 0, (out.flags & CHASSIS_TOKEN_UNUSED) != 0};
}

int32_t id_of(const TokenizerSubject& subject, std::string_view text) {
  int32_t id = -1;
  const PluginCall call(call_site(subject.label), "id_of");
  expect_ok(subject.table->id_of(subject.self, str_of(text), &id));
  return id;
}

RenderedChat render(const TokenizerSubject& subject, const ChatRequest& chat, uint32_t more_flags) {
  chassis_chat_t raw{};
  raw.struct_size = sizeof raw;
  raw.flags = more_flags | (chat.generation_prompt ? CHASSIS_CHAT_GENERATION_PROMPT : 0) |
              (chat.spans ? CHASSIS_CHAT_SPANS : 0);
  raw.messages_json = str_of(chat.messages_json);
  raw.tools_json = str_of(chat.tools_json);
  raw.variables_json = str_of(chat.variables_json);
  raw.template_text = str_of(chat.template_text);
  raw.unix_time_s = chat.unix_time_s;
  struct Sink {
    RenderedChat rendered;
    int num_texts = 0;
    bool span_before_text = false;
  } kept;
  const chassis_chat_sink_t sink = {
      sizeof sink, 0, &kept,
      [](const chassis_chat_sink_t* self, chassis_str_t text) {
        Sink& kept = *static_cast<Sink*>(self->impl);
        ++kept.num_texts;
        kept.rendered.text = std::string(view_of(text));
      },
      [](const chassis_chat_sink_t* self, const chassis_chat_span_t* span) {
        Sink& kept = *static_cast<Sink*>(self->impl);
        kept.span_before_text |= kept.num_texts == 0;
        kept.rendered.spans.push_back({static_cast<ChatLeaf>(span->leaf), span->message, span->begin, span->end});
      }};
  const PluginCall call(call_site(subject.label), "render");
  expect_ok(subject.table->render(subject.self, &raw, &sink));
  if (kept.num_texts != 1)
    throw Refused{0, fmt::format("render passes {} texts to the sink, expected 1", kept.num_texts), true};
  if (kept.span_before_text) throw Refused{0, "render passes a span before the text", true};
  return std::move(kept.rendered);
}

}  // namespace chassis::tokenizer_calls
