// Interfaces through which the plugin layer receives services from host/service, without including it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/json.hpp"

namespace chassis {

struct Manifest;

// Describes an instance to its services.
struct InstanceContext {
  std::string plugin_id;  // id of the library
  std::string kind;       // "ops"
  std::string member_id;  // "sdpa"
  const Manifest* manifest = nullptr;
  Json options;                                // every option of the schema, defaults applied
  std::map<std::string, std::string> origins;  // option → "file:line:column" or "default"
  std::vector<std::string> opened_by = {};     // "kind/id" of the members that opened it to wrap it, outermost first
};

// The service tables of one instance; outlives it.
class InstanceServices {
 public:
  virtual ~InstanceServices() = default;
  // NULL if there is no such service.
  virtual const void* get(std::string_view id) = 0;
  // Number of tensor handles that the plugin received or created and has not released.
  virtual int64_t live_tensors() const = 0;
};

class ServiceProvider {
 public:
  virtual ~ServiceProvider() = default;
  virtual bool offers(std::string_view id) const = 0;
  // Throws a plugin error that names both schemas if an operator of the manifest is unknown or has another schema.
  virtual void check_operators(const Manifest& manifest) const = 0;
  // "2.11.0"; empty if this process has no LibTorch.
  virtual std::string torch_version() const = 0;
  virtual std::unique_ptr<InstanceServices> attach(const InstanceContext& context) = 0;
};

}  // namespace chassis
