// All text is written as string expressions and each tag removes the white space around it, so that the layout of the
// template adds nothing. The order of its parts is that of render_slots().
#include "host/data/slot_jinja.hpp"

#include <fmt/format.h>

#include <map>
#include <string_view>

#include "host/base/json.hpp"

namespace chassis {
namespace {

std::string jinja_text(std::string_view text) { return Json(text).dump(); }

class Writer {
 public:
  Writer(const SlotTemplate& slots, bool keep_reasoning) : slots_(slots), keep_reasoning_(keep_reasoning) {}

  std::string write() {
    tag("set ns = namespace(content='', first_user=-1, last_user=-1, system='', tools='')");
    tag("for m in messages");
    tag("if m.role == 'user'");
    tag("if ns.first_user < 0");
    tag("set ns.first_user = loop.index0");
    tag("endif");
    tag("set ns.last_user = loop.index0");
    tag("endif");
    tag("endfor");
    show(slots_.bos);
    write_front();
    tag("for m in messages");
    write_content("m");
    if (slots_.system && slots_.system_place == SlotPlace::kOwn) {
      tag("if loop.first and m.role != 'system' and ns.system");
      show(*slots_.system, "ns.system");
      tag("endif");
    }
    write_system();
    write_user();
    write_assistant();
    write_tool();
    tag("else");
    fail("template " + slots_.name + " does not have this role: ", "m.role");
    tag("endif");
    tag("endfor");
    tag("if add_generation_prompt");
    show(slots_.assistant_open);
    tag("endif");
    out_.pop_back();  // a line break at the end might be shown
    return std::move(out_);
  }

 private:
  using Values = std::map<std::string, std::string, std::less<>>;

  void tag(std::string_view code) { out_ += fmt::format("{{%- {} %}}\n", code); }
  void fail(const std::string& what, const std::string& expression = "") {
    out_ += fmt::format("{{{{- raise_exception({}{}) }}}}\n", jinja_text(what),
                        expression.empty() ? "" : " ~ " + expression);
  }

  // The text of a slot as an expression; placeholders become the expressions `values`.
  std::string text_of(const TextSlot& slot, const Values& values) const {
    std::string text;
    const auto add = [&](const std::string& part) { text += (text.empty() ? "" : " ~ ") + part; };
    for (const TextSlot::Piece& piece : slot.pieces) {
      if (!piece.text.empty()) add(jinja_text(piece.text));
      if (piece.placeholder == "bos" || piece.placeholder == "eos")
        add(piece.placeholder + "_token");
      else if (!piece.placeholder.empty())
        add(values.at(piece.placeholder));
    }
    return text.empty() ? "''" : text;
  }
  void show(const TextSlot& slot, const Values& values = {}) {
    if (!slot.pieces.empty()) out_ += fmt::format("{{{{- {} }}}}\n", text_of(slot, values));
  }
  void show(const TextSlot& slot, const std::string& content) { show(slot, Values{{"content", content}}); }

  // Sets ns.content to the text of a message, trimmed if the template strips the contents of its role.
  void write_content(const std::string& message) {
    tag("set ns.content = ''");
    tag(fmt::format("if {}.content is string", message));
    tag(fmt::format("set ns.content = {}.content", message));
    tag(fmt::format("elif {}.content", message));
    tag(fmt::format("for part in {}.content", message));
    tag("set ns.content = ns.content ~ part.text");
    tag("endfor");
    tag("endif");
    if (slots_.strip.empty()) return;
    std::string roles;
    for (const std::string& role : slots_.strip) roles += (roles.empty() ? "'" : ", '") + role + "'";
    tag(fmt::format("if {}.role in [{}]", message, roles));
    tag("set ns.content = ns.content | trim");
    tag("endif");
  }

  // Writes the text before the first message.
  void write_front() {
    tag(fmt::format("set ns.system = {}", jinja_text(slots_.default_system)));
    tag("if messages and messages[0].role == 'system'");
    write_content("messages[0]");
    tag("set ns.system = ns.content");
    tag("endif");
    tag("if tools");
    if (slots_.tools_system) {
      tag("for tool in tools");
      if (!slots_.tools_separator.pieces.empty()) {
        tag("if not loop.first");
        tag("set ns.tools = ns.tools ~ " + text_of(slots_.tools_separator, {}));
        tag("endif");
      }
      tag("set ns.tools = ns.tools ~ " + text_of(slots_.tools_each, {{"tool", "(tool | tojson)"}}));
      tag("endfor");
      tag("set ns.tools = " + text_of(*slots_.tools_system, {{"tools", "ns.tools"}}));
      if (slots_.tools_place == SlotPlace::kOwn) {
        tag("set ns.system = (ns.system ~ \"\\n\\n\" if ns.system else '') ~ ns.tools");
        tag("set ns.tools = ''");
      }
    } else {
      fail("template " + slots_.name + " has no place for tools");
    }
    tag("endif");
  }

  void write_system() {
    tag("if m.role == 'system'");
    if (!slots_.system) {
      fail("template " + slots_.name + " has no system messages");
    } else if (slots_.system_place == SlotPlace::kOwn) {
      show(*slots_.system, "(ns.system if loop.first else ns.content)");
    } else {
      tag("if not loop.first or ns.first_user < 0");
      fail("template " + slots_.name + " puts the first system message into a message of the user, and takes no other");
      tag("endif");
    }
  }

  static std::string user_of(SlotPlace place) {
    return place == SlotPlace::kFirstUser ? "ns.first_user" : "ns.last_user";
  }

  void write_user() {
    if (!slots_.user) return;
    tag("elif m.role == 'user'");
    if (slots_.tools_system && slots_.tools_place != SlotPlace::kOwn) {
      tag("if loop.index0 == " + user_of(slots_.tools_place));
      out_ += "{{- ns.tools }}\n";
      tag("endif");
    }
    if (slots_.system && slots_.system_place != SlotPlace::kOwn) {
      tag(fmt::format("if loop.index0 == {} and ns.system", user_of(slots_.system_place)));
      tag(fmt::format("set ns.content = {} ~ ns.content", text_of(*slots_.system, {{"content", "ns.system"}})));
      tag("endif");
    }
    show(*slots_.user, "ns.content");
  }

  void write_assistant() {
    tag("elif m.role == 'assistant'");
    show(slots_.assistant_open);
    if (slots_.reasoning) {
      tag(keep_reasoning_ ? "if m.reasoning_content" : "if m.reasoning_content and loop.index0 > ns.last_user");
      show(*slots_.reasoning, "m.reasoning_content");
      tag("endif");
    }
    tag("if ns.content or not m.tool_calls");
    show(slots_.assistant, "ns.content");
    tag("endif");
    tag("if m.tool_calls");
    write_calls();
    tag("endif");
    show(slots_.assistant_close);
  }

  void write_calls() {
    if (!slots_.tool_call) return fail("template " + slots_.name + " cannot write tool calls");
    if (!slots_.tool_calls_behind_content.pieces.empty()) {
      tag("if ns.content");
      show(slots_.tool_calls_behind_content);
      tag("endif");
    }
    show(slots_.tool_calls_open);
    tag("for c in m.tool_calls");
    tag("set call = c.function if c.function else c");
    tag("if not loop.first");
    if (slots_.tool_calls_separator)
      show(*slots_.tool_calls_separator);
    else
      fail("template " + slots_.name + " writes only 1 tool call in a message");
    tag("endif");
    show(*slots_.tool_call, {{"name", "call.name"},
                             {"arguments", "(call.arguments if call.arguments is string else call.arguments | tojson)"},
                             {"id", "c.id"}});
    tag("endfor");
    show(slots_.tool_calls_close);
  }

  void write_tool() {
    if (!slots_.tool) return;
    tag("elif m.role == 'tool'");
    if (!slots_.tool_open.pieces.empty()) {
      tag("if loop.first or messages[loop.index0 - 1].role != 'tool'");
      show(slots_.tool_open);
      tag("endif");
    }
    show(*slots_.tool, {{"content", "ns.content"},
                        {"content_json", "(ns.content | tojson)"},
                        {"id", "m.tool_call_id"},
                        {"name", "m.name"}});
    if (!slots_.tool_close.pieces.empty()) {
      tag("if loop.last or messages[loop.index0 + 1].role != 'tool'");
      show(slots_.tool_close);
      tag("endif");
    }
  }

  const SlotTemplate& slots_;
  const bool keep_reasoning_;
  std::string out_;
};

}  // namespace

std::string slot_template_jinja(const SlotTemplate& slots, bool keep_reasoning) {
  return Writer(slots, keep_reasoning).write();
}

}  // namespace chassis
