// CHASSIS_PLUGIN(lines, Class, …): makes the manifest note, the factory and the exported entry of a plugin. Used once
// per library. `lines` are further manifest lines (op=, requires=, architecture=, swappable=, license=; see
// chassis/plugin.h), each ending in \n; the rest comes from chassis_add_plugin() and the classes.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "chassis/member.hpp"
#include "chassis/plugin.h"

#if !defined(CHASSIS_PLUGIN_ID) || !defined(CHASSIS_PLUGIN_VERSION) || !defined(CHASSIS_PLUGIN_TIER)
#error "build plugins with chassis_add_plugin(): it defines what the manifest needs"
#endif

// The oldest host minor that the plugin works with, unless the base class of a member needs a later one. Check for
// later members with CHASSIS_HAS, so that this need not be raised; a plugin that requires them defines a larger value
// before it includes this header.
#ifndef CHASSIS_MIN_HOST_MINOR
#define CHASSIS_MIN_HOST_MINOR CHASSIS_ABI_OLDEST_MINOR
#endif

CHASSIS_SDK_BEGIN

template <typename T>
constexpr std::string_view member_id() {
  if constexpr (requires { T::kId; }) {
    return T::kId;
  } else {
    return CHASSIS_PLUGIN_ID;
  }
}

template <typename T>
constexpr int member_min_host_minor() {
  int minor = 0;
  if constexpr (requires { T::kMinHostMinor; }) minor = T::kMinHostMinor;
  // For base classes whose minimum depends on the functions that the member overrides.
  if constexpr (requires { T::template min_host_minor<T>(); }) minor = std::max(minor, T::template min_host_minor<T>());
  return minor;
}

// Builds text at compile time, in two passes over the same code: one counts, one writes.
struct ManifestWriter {
  char* out;
  size_t size = 0;
  constexpr void put(std::string_view text) {
    for (char c : text) {
      if (out != nullptr) out[size] = c;
      ++size;
    }
  }
  constexpr void line(std::string_view key, std::string_view value) {
    if (value.empty()) return;
    put(key), put("="), put(value), put("\n");
  }
  // Text in which `separator` stands for the end of a line.
  constexpr void lines(std::string_view text, char separator) {
    for (const char c : text) put(c == separator ? "\n" : std::string_view(&c, 1));
    if (!text.empty()) put("\n");
  }
  constexpr void number(int value) {
    if (value >= 10) number(value / 10);
    const char digit = static_cast<char>('0' + value % 10);
    put({&digit, 1});
  }
};

#define CHASSIS_SDK_TEXT2(x) #x
#define CHASSIS_SDK_TEXT(x) CHASSIS_SDK_TEXT2(x)

template <typename... Members>
constexpr void write_manifest(ManifestWriter& w, std::string_view lines) {
  w.line("chassis-manifest", "1");
  w.line("id", CHASSIS_PLUGIN_ID);
  w.line("version", CHASSIS_PLUGIN_VERSION);
  w.line("abi", CHASSIS_SDK_TEXT(CHASSIS_ABI_MAJOR) "." CHASSIS_SDK_TEXT(CHASSIS_ABI_MINOR));
  w.put("abi-min-host=" CHASSIS_SDK_TEXT(CHASSIS_ABI_MAJOR) ".");
  w.number(std::max({CHASSIS_MIN_HOST_MINOR, member_min_host_minor<Members>()...}));
  w.put("\n");
  w.line("tier", CHASSIS_PLUGIN_TIER);
  (..., (w.put("member="), w.put(Members::kKind), w.put("/"), w.put(member_id<Members>()), w.put("\n")));
#ifdef CHASSIS_PLUGIN_TORCH
  w.line("torch", CHASSIS_PLUGIN_TORCH);
#endif
#ifdef CHASSIS_PLUGIN_DEVICE_CODE  // "cuda=13:sm=80,ptx90"
  w.lines(CHASSIS_PLUGIN_DEVICE_CODE, ':');
#endif
#ifdef CHASSIS_PLUGIN_GIT
  w.line("git", CHASSIS_PLUGIN_GIT);
#endif
  w.put(lines);
}

template <typename... Members>
constexpr size_t manifest_size(std::string_view lines) {
  ManifestWriter w{nullptr};
  write_manifest<Members...>(w, lines);
  return w.size;
}

template <size_t Size>
struct ManifestNote {
  uint32_t name_bytes = 8, text_bytes = Size, type = CHASSIS_NOTE_TYPE;
  char name[8] = CHASSIS_NOTE_NAME;
  char text[(Size + 3) & ~size_t{3}] = {};
};

template <size_t Size, typename... Members>
constexpr ManifestNote<Size> make_manifest(std::string_view lines) {
  ManifestNote<Size> note;
  ManifestWriter w{note.text};
  write_manifest<Members...>(w, lines);
  return note;
}

// A member in use: the table that the host sees, and the C++ object that serves it.
template <typename T>
struct InstanceOf {
  explicit InstanceOf(const chassis_host_t* table) : host(table), object(host) {
    instance = {sizeof(chassis_instance_t),
                0,
                static_cast<Member*>(&object),
                &get_interface,
                &prepare,
                &activate,
                &quiesce,
                &deactivate,
                &destroy};
  }

  static InstanceOf& of(chassis_instance* self) noexcept { return *reinterpret_cast<InstanceOf*>(self); }
  static const void* get_interface(const chassis_instance*, chassis_str_t id) noexcept {
    return T::template interface<T>(text_of(id));
  }
  static chassis_status_t* prepare(chassis_instance* self) noexcept {
    return guard(of(self).host.table(), [&] { of(self).object.prepare(); });
  }
  static chassis_status_t* activate(chassis_instance* self) noexcept {
    return guard(of(self).host.table(), [&] { of(self).object.activate(); });
  }
  static chassis_status_t* quiesce(chassis_instance* self, uint64_t deadline_ns) noexcept {
    return guard(of(self).host.table(), [&] { of(self).object.quiesce(deadline_ns); });
  }
  static chassis_status_t* deactivate(chassis_instance* self) noexcept {
    return guard(of(self).host.table(), [&] { of(self).object.deactivate(); });
  }
  static void destroy(chassis_instance* self) noexcept { delete &of(self); }

  chassis_instance_t instance;  // first member, so that of() can cast self
  Host host;
  T object;
};

template <typename... Members>
struct FactoryOf {
  static constexpr size_t kNumMembers = sizeof...(Members);

  static const chassis_member_t* member(uint32_t i) noexcept {
    static const std::array<chassis_member_t, kNumMembers> members = {describe<Members>()...};
    return i < kNumMembers ? &members[i] : nullptr;
  }

  static chassis_status_t* create(const chassis_host_t* host, chassis_str_t kind, chassis_str_t id,
                                  chassis_instance_t** out) noexcept {
    return guard(host, [&] {
      if (!(create_if<Members>(host, text_of(kind), text_of(id), out) || ...)) {
        throw Failure(CHASSIS_NOT_FOUND, "this library has no member ", text_of(kind), "/", text_of(id));
      }
    });
  }

  static constexpr chassis_factory_t kTable = {sizeof(chassis_factory_t), kNumMembers, &member, &create};

 private:
  template <typename T>
  static chassis_member_t describe() {
    chassis_member_t member = {sizeof(chassis_member_t), 0, str(T::kKind), str(member_id<T>()), str(T::kDoc), nullptr};
    if constexpr (requires { T::options(); }) {
      const auto& schema = static_cast<const Options&>(T::options()).schema();
      member.num_options = static_cast<uint32_t>(schema.size());
      member.options = schema.data();
    }
    return member;
  }

  template <typename T>
  static bool create_if(const chassis_host_t* host, std::string_view kind, std::string_view id,
                        chassis_instance_t** out) {
    if (kind != T::kKind || id != member_id<T>()) return false;
    *out = &std::make_unique<InstanceOf<T>>(host).release()->instance;
    return true;
  }
};

CHASSIS_SDK_END

#define CHASSIS_PLUGIN(lines, ...)                                                                                     \
  __attribute__((used, aligned(4), section(CHASSIS_NOTE_SECTION))) static const constinit auto chassis_manifest_note = \
      ::chassis::make_manifest<::chassis::manifest_size<__VA_ARGS__>(lines), __VA_ARGS__>(lines);                      \
  CHASSIS_EXPORT chassis_status_t* chassis_plugin_entry_v1(const chassis_host_t*, const chassis_factory_t** out) {     \
    *out = &::chassis::FactoryOf<__VA_ARGS__>::kTable;                                                                 \
    return nullptr;                                                                                                    \
  }
