// A host for tests of plugins: statuses, options, log, tensors in plain memory, tasks on one thread. It loads a plugin
// directly from the build folder and negotiates no versions; the real host is host/plugin and host/service.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chassis/host.h"
#include "chassis/plugin.h"
#include "chassis/service/log.h"
#include "chassis/service/memory.h"
#include "chassis/service/options.h"
#include "chassis/service/task.h"
#include "chassis/service/tensor.h"

namespace fake {

inline chassis_str_t str(std::string_view text) { return {text.data(), text.size()}; }
inline std::string text_of(chassis_str_t s) { return std::string(s.ptr == nullptr ? "" : s.ptr, s.len); }

struct Status {
  int32_t code;
  std::string message;
};

// Contiguous, on the CPU.
struct Tensor {
  chassis_tensor_view_t view{};
  std::vector<int64_t> sizes, strides;
  std::vector<char> bytes;
  int references = 1;
};
inline Tensor* tensor(chassis_tensor_t handle) { return reinterpret_cast<Tensor*>(handle); }

class Host {
 public:
  Host() {
    table_ = {sizeof table_,
              CHASSIS_ABI_MAJOR,
              CHASSIS_ABI_MINOR,
              this,
              [](const chassis_host_t* h, chassis_str_t id) { return self(h).service(text_of(id)); },
              [](const chassis_host_t*, int32_t code, chassis_str_t message, chassis_status_t* cause) {
                auto status = std::make_unique<Status>(Status{code, text_of(message)});
                if (cause != nullptr) status->message += ": " + std::unique_ptr<Status>(as(cause))->message;
                return reinterpret_cast<chassis_status_t*>(status.release());
              },
              [](chassis_status_t* s, chassis_str_t key, chassis_str_t value) {
                as(s)->message += " [" + text_of(key) + "=" + text_of(value) + "]";
              },
              [](const chassis_status_t* s) { return s == nullptr ? CHASSIS_OK : as(s)->code; },
              [](const chassis_status_t* s) { return str(as(s)->message); },
              [](chassis_status_t* s) { delete as(s); }};
    log_ = {sizeof log_,
            0,
            this,
            [](const chassis_log_t*, uint32_t) { return 1u; },
            [](const chassis_log_t* t, uint32_t, chassis_str_t m) { self(t).lines.push_back(text_of(m)); },
            [](const chassis_log_t* t, chassis_str_t key, chassis_str_t m) {
              self(t).counts[text_of(key)].push_back(text_of(m));
            }};
    options_ = {sizeof options_,
                0,
                this,
                [](const chassis_options_t* t, chassis_str_t name, uint32_t* out) {
                  return self(t).with_option(name, [&](const std::string& json) { *out = json == "true"; });
                },
                [](const chassis_options_t* t, chassis_str_t name, int64_t* out) {
                  return self(t).with_option(name, [&](const std::string& json) { *out = std::stoll(json); });
                },
                [](const chassis_options_t* t, chassis_str_t name, double* out) {
                  return self(t).with_option(name, [&](const std::string& json) { *out = std::stod(json); });
                },
                [](const chassis_options_t* t, chassis_str_t name, chassis_str_t* out) {
                  return self(t).with_option(name, [&](const std::string& json) {
                    *out = {json.data() + 1, json.size() - 2};  // without the quotes
                  });
                },
                [](const chassis_options_t* t, chassis_str_t name, chassis_str_t* out) {
                  return self(t).with_option(name, [&](const std::string& json) { *out = str(json); });
                },
                [](const chassis_options_t* t, chassis_str_t name, chassis_str_t* out) {
                  *out = str(self(t).set_by_user.contains(text_of(name)) ? "run.toml:1:1" : "default");
                  return static_cast<chassis_status_t*>(nullptr);
                }};
    tensors_ = {};
    tensors_.struct_size = sizeof tensors_;
    tensors_.impl = this;
    tensors_.view = [](chassis_tensor_t t, chassis_tensor_view_t* out) {
      const uint32_t size = out->struct_size;
      std::memcpy(static_cast<void*>(out), &tensor(t)->view, std::min<size_t>(size, sizeof(chassis_tensor_view_t)));
      out->struct_size = size;
    };
    tensors_.create = [](const chassis_tensor_service_t* s, uint32_t dtype, uint32_t, int32_t, uint32_t num_dims,
                         const int64_t* sizes, chassis_tensor_t* out) {
      *out = self(s).make(dtype, {sizes, sizes + num_dims});
      return static_cast<chassis_status_t*>(nullptr);
    };
    tensors_.retain = [](const chassis_tensor_service_t*, chassis_tensor_t t, chassis_tensor_t* out) {
      ++tensor(t)->references;
      *out = t;
      return static_cast<chassis_status_t*>(nullptr);
    };
    tensors_.release = [](const chassis_tensor_service_t* s, chassis_tensor_t t) {
      if (t != nullptr && --tensor(t)->references == 0) {
        delete tensor(t);
        --self(s).live_tensors;
      }
    };
    // Chunks of uneven length, to test their borders.
    task_ = {sizeof task_, 0, this, [](const chassis_task_t* t) { return self(t).num_threads; },
             [](const chassis_task_t* t, int64_t count, int64_t grain, void (*body)(void*, int64_t, int64_t),
                void* context) {
               const int64_t chunk = std::max<int64_t>(grain, count / self(t).num_threads + 1);
               for (int64_t i = 0; i < count; i += chunk) body(context, i, std::min(count, i + chunk));
             }};
    memory_ = {sizeof memory_,
               0,
               this,
               [](const chassis_memory_t*, uint64_t bytes, void** out) {
                 *out = std::aligned_alloc(64, (bytes + 64) / 64 * 64);
                 return static_cast<chassis_status_t*>(nullptr);
               },
               [](const chassis_memory_t*, void* data) { std::free(data); },
               [](const chassis_memory_t*, uint32_t, uint64_t* live, uint64_t* peak) { *live = *peak = 0; },
               nullptr,
               nullptr};
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  const chassis_host_t* table() const { return &table_; }

  // Set or read by the test.
  std::map<std::string, std::string> options;  // name → JSON text
  std::map<std::string, std::string> set_by_user;
  std::vector<std::string> lines;
  std::map<std::string, std::vector<std::string>> counts;
  std::map<std::string, const void*> more_services;
  std::vector<std::string> missing_services;
  uint32_t num_threads = 3;
  int64_t live_tensors = 0;

  chassis_tensor_t make(uint32_t dtype, std::vector<int64_t> sizes) {
    auto t = std::make_unique<Tensor>();
    t->sizes = std::move(sizes);
    t->strides.resize(t->sizes.size());
    int64_t count = 1;
    for (size_t i = t->sizes.size(); i-- > 0;) t->strides[i] = count, count *= t->sizes[i];
    const size_t width = dtype == CHASSIS_DTYPE_F64 || dtype == CHASSIS_DTYPE_I64 ? 8 : 4;
    t->bytes.resize(static_cast<size_t>(count) * width);
    t->view = {sizeof t->view,
               dtype,
               CHASSIS_DEVICE_CPU,
               0,
               t->bytes.data(),
               count,
               static_cast<uint32_t>(t->sizes.size()),
               1,
               t->sizes.data(),
               t->strides.data()};
    ++live_tensors;
    return reinterpret_cast<chassis_tensor_t>(t.release());
  }

  // Throws the message of a status, and releases it.
  void check(chassis_status_t* status) const {
    if (status == nullptr) return;
    const std::unique_ptr<Status> owned(as(status));
    throw std::runtime_error(owned->message);
  }
  // Returns the message of a status and releases it; "ok" for success.
  std::string message(chassis_status_t* status) const {
    if (status == nullptr) return "ok";
    return std::unique_ptr<Status>(as(status))->message;
  }

 private:
  static Status* as(chassis_status_t* s) { return reinterpret_cast<Status*>(s); }
  static const Status* as(const chassis_status_t* s) { return reinterpret_cast<const Status*>(s); }
  template <typename Table>
  static Host& self(const Table* table) {
    return *static_cast<Host*>(table->impl);
  }

  const void* service(const std::string& id) const {
    for (const auto& missing : missing_services) {
      if (missing == id) return nullptr;
    }
    if (const auto found = more_services.find(id); found != more_services.end()) return found->second;
    if (id == CHASSIS_LOG_ID) return &log_;
    if (id == CHASSIS_OPTIONS_ID) return &options_;
    if (id == CHASSIS_TENSOR_ID) return &tensors_;
    if (id == CHASSIS_TASK_ID) return &task_;
    if (id == CHASSIS_MEMORY_ID) return &memory_;
    return nullptr;
  }

  template <typename Read>
  chassis_status_t* with_option(chassis_str_t name, Read&& read) const {
    const auto found = options.find(text_of(name));
    if (found == options.end()) {
      const std::string message = "no option " + text_of(name);
      return table_.status_new(&table_, CHASSIS_NOT_FOUND, str(message), nullptr);
    }
    read(found->second);
    return nullptr;
  }

  chassis_host_t table_;
  chassis_log_t log_;
  chassis_options_t options_;
  chassis_tensor_service_t tensors_;
  chassis_task_t task_;
  chassis_memory_t memory_;
};

// A library, mapped until the process ends.
class Plugin {
 public:
  Plugin(Host& host, const std::string& path) : host_(host) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const auto entry = reinterpret_cast<decltype(&chassis_plugin_entry_v1)>(dlsym(library, CHASSIS_ENTRY_SYMBOL));
    if (entry == nullptr) throw std::runtime_error(dlerror());
    host_.check(entry(host_.table(), &factory_));
  }
  // A plugin that is linked into the program.
  Plugin(Host& host, decltype(&chassis_plugin_entry_v1) entry) : host_(host) {
    host_.check(entry(host_.table(), &factory_));
  }

  const chassis_factory_t& factory() const { return *factory_; }

 private:
  Host& host_;
  const chassis_factory_t* factory_ = nullptr;
};

// One member in use, prepared and activated; `options` are JSON texts that replace defaults of its schema.
class Instance {
 public:
  Instance(Host& host, const Plugin& plugin, std::string_view kind, std::string_view id,
           const std::map<std::string, std::string>& options = {})
      : host_(host) {
    for (uint32_t i = 0; i < plugin.factory().num_members; ++i) {
      const chassis_member_t& member = *plugin.factory().member(i);
      if (text_of(member.kind) != kind || text_of(member.id) != id) continue;
      for (uint32_t j = 0; j < member.num_options; ++j) {
        host_.options[text_of(member.options[j].name)] = text_of(member.options[j].default_json);
      }
    }
    for (const auto& [name, json] : options) host_.options[name] = host_.set_by_user[name] = json;
    host_.check(plugin.factory().create(host_.table(), str(kind), str(id), &self_));
    try {
      if (self_->prepare != nullptr) host_.check(self_->prepare(self_));
      if (self_->activate != nullptr) host_.check(self_->activate(self_));
    } catch (...) {
      self_->destroy(self_);
      throw;
    }
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;
  ~Instance() {
    if (self_ != nullptr) self_->destroy(self_);
  }

  chassis_instance_t* self() const { return self_; }

  template <typename Table>
  const Table& interface(std::string_view id) const {
    const void* table = self_->get_interface(self_, str(id));
    if (table == nullptr) throw std::runtime_error("no interface " + std::string(id));
    return *static_cast<const Table*>(table);
  }

 private:
  Host& host_;
  chassis_instance_t* self_ = nullptr;
};

}  // namespace fake
