// chassis.dispatch/1: ATen's operators by name for plugins; and the check of a manifest's operators.
#include "chassis/service/dispatch.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/TensorBody.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <map>
#include <mutex>
#include <optional>

#include "host/plugin/manifest.hpp"
#include "host/plugin/status.hpp"
#include "host/plugin/thread_role.hpp"
#include "host/service/autograd.hpp"
#include "host/service/handle.hpp"
#include "host/service/operators.hpp"
#include "host/service/tables.hpp"

struct chassis_operator {
  c10::OperatorHandle handle;
  std::string name;
};

namespace chassis {
namespace {

std::optional<c10::OperatorHandle> find_operator(std::string_view name) {
  const size_t dot = name.find('.');
  const std::string base(name.substr(0, dot));
  const std::string overload(dot == std::string_view::npos ? "" : name.substr(dot + 1));
  return c10::Dispatcher::singleton().findSchema({base, overload});
}

c10::IValue value_of(const chassis_boxed_t& boxed) {
  const auto& list = boxed.value.list;
  switch (boxed.tag) {
    case CHASSIS_BOXED_NONE: return {};
    case CHASSIS_BOXED_TENSOR:
      return boxed.value.tensor ? c10::IValue(tensor_of(boxed.value.tensor)) : c10::IValue();
    case CHASSIS_BOXED_INT: return boxed.value.i;
    case CHASSIS_BOXED_FLOAT: return boxed.value.f;
    case CHASSIS_BOXED_BOOL: return boxed.value.i != 0;
    case CHASSIS_BOXED_STRING: return std::string(static_cast<const char*>(list.ptr), list.len);
    case CHASSIS_BOXED_INT_LIST: {
      const auto* items = static_cast<const int64_t*>(list.ptr);
      return std::vector<int64_t>(items, items + list.len);
    }
    case CHASSIS_BOXED_FLOAT_LIST: {
      const auto* items = static_cast<const double*>(list.ptr);
      return std::vector<double>(items, items + list.len);
    }
    case CHASSIS_BOXED_BOOL_LIST: {
      c10::List<bool> items;
      for (uint64_t i = 0; i < list.len; ++i) items.push_back(static_cast<const uint8_t*>(list.ptr)[i] != 0);
      return items;
    }
    case CHASSIS_BOXED_TENSOR_LIST: {
      std::vector<at::Tensor> items;
      for (uint64_t i = 0; i < list.len; ++i) {
        chassis_tensor_t item = static_cast<const chassis_tensor_t*>(list.ptr)[i];
        items.push_back(item ? tensor_of(item) : at::Tensor());
      }
      return items;
    }
    case CHASSIS_BOXED_DTYPE:
      return static_cast<int64_t>(scalar_type(static_cast<Dtype>(boxed.value.i)));
    default: throw plugin_error("argument tag " + std::to_string(boxed.tag) + " is unknown");
  }
}

// An absent tensor is None where the operator has an optional one. Elsewhere it is an undefined tensor, which kernels
// such as the backward of flash attention take instead.
c10::IValue value_for(const c10::FunctionSchema& schema, size_t i, const chassis_boxed_t& boxed) {
  c10::IValue value = value_of(boxed);
  const bool is_required_tensor =
      i < schema.arguments().size() && schema.arguments()[i].type()->kind() == c10::TypeKind::TensorType;
  return value.isNone() && is_required_tensor ? c10::IValue(at::Tensor()) : value;
}

// "f32[4, 128]", for messages.
std::string describe(const c10::IValue& value) {
  if (!value.isTensor()) return value.tagKind();
  const at::Tensor& tensor = value.toTensor();
  if (!tensor.defined()) return "no tensor";
  std::string text = c10::toString(tensor.scalar_type());
  for (int64_t i = 0; i < tensor.dim(); ++i) text += (i ? ", " : "[") + std::to_string(tensor.size(i));
  return tensor.dim() ? text + "]" : text;
}

class DispatchTable final : public Table {
 public:
  explicit DispatchTable(const TableContext& context) : context_(context) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.find = [](const chassis_dispatch_t* t, chassis_str_t name, const chassis_operator_t** out) {
      assert_thread_role(ThreadRole::kStep, "chassis.dispatch/1 find");
      return self(t).find(view_of(name), out);
    };
    table_.call = [](const chassis_dispatch_t* t, const chassis_operator_t* op, const chassis_boxed_t* arguments,
                     uint32_t num_arguments, chassis_boxed_t* results, uint32_t num_results) {
      assert_thread_role(ThreadRole::kStep, "chassis.dispatch/1 call");
      return self(t).call(*op, arguments, num_arguments, results, num_results);
    };
    table_.free_list = [](const chassis_dispatch_t*, chassis_boxed_t* list) {
      switch (list->tag) {
        case CHASSIS_BOXED_TENSOR_LIST: delete[] static_cast<const chassis_tensor_t*>(list->value.list.ptr); break;
        case CHASSIS_BOXED_INT_LIST: delete[] static_cast<const int64_t*>(list->value.list.ptr); break;
        case CHASSIS_BOXED_FLOAT_LIST: delete[] static_cast<const double*>(list->value.list.ptr); break;
        case CHASSIS_BOXED_STRING: delete[] static_cast<const char*>(list->value.list.ptr); break;
        default: break;
      }
      *list = {};
    };
  }
  const void* get() const override { return &table_; }

 private:
  static DispatchTable& self(const chassis_dispatch_t* t) { return *static_cast<DispatchTable*>(t->impl); }

  chassis_status_t* find(std::string_view name, const chassis_operator_t** out) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      if (const auto known = found_.find(name); known != found_.end()) {
        *out = known->second.get();
        return nullptr;
      }
      const std::string* declared = nullptr;
      if (context_.instance.manifest)
        for (const std::string& schema : context_.instance.manifest->operators)
          if (operator_name(schema) == name) declared = &schema;
      if (!declared)
        return make_status(CHASSIS_NOT_FOUND, "operator " + std::string(name) + " is not declared in the manifest of " +
                                                 context_.instance.plugin_id + " (op=…)");
      const auto handle = find_operator(name);
      if (!handle)
        return make_status(CHASSIS_NOT_FOUND, "this LibTorch has no operator " + std::string(name));
      if (const std::string ours = toString(handle->schema()); !serves_schema(ours, *declared))
        return make_status(CHASSIS_FAILED_PRECONDITION, "operator " + std::string(name) + ": the plugin expects \"" +
                                                           *declared + "\", this LibTorch has \"" + ours + "\"");
      auto& entry = found_[std::string(name)];
      entry = std::make_unique<chassis_operator>(chassis_operator{*handle, std::string(name)});
      *out = entry.get();
      return nullptr;
    } catch (...) {
      return status_of_current_exception();
    }
  }

  chassis_status_t* call(const chassis_operator& op, const chassis_boxed_t* arguments, uint32_t num_arguments,
                         chassis_boxed_t* results, uint32_t num_results) noexcept {
    return guarded([&] {
      const c10::FunctionSchema& schema = op.handle.schema();
      if (num_results != schema.returns().size())
        throw plugin_error(op.name + " has " + std::to_string(schema.returns().size()) + " results, " +
                           std::to_string(num_results) + " were expected");
      torch::jit::Stack stack;
      stack.reserve(std::max<size_t>(schema.arguments().size(), num_results));
      try {
        translate_errors([&] {
          for (uint32_t i = 0; i < num_arguments; ++i) stack.push_back(value_for(schema, i, arguments[i]));
          schema.checkAndNormalizeInputs(stack);
          std::optional<at::AutoDispatchBelowADInplaceOrView> below;
          if (!autograd_recording()) below.emplace();
          op.handle.callBoxed(stack);
        });
      } catch (Error& error) {
        error.with("operator", op.name);
        std::string shapes;
        for (const c10::IValue& value : stack)
          if (value.isTensor()) shapes += (shapes.empty() ? "" : " ") + describe(value);
        if (!shapes.empty()) error.with("tensors", shapes);
        throw;
      }
      for (uint32_t i = 0; i < num_results; ++i) set_result(std::move(stack[i]), results[i]);
    });
  }

  chassis_tensor_t make_handle(at::Tensor tensor) {
    if (!tensor.defined()) return nullptr;
    chassis_tensor_t handle = new_handle(std::move(tensor));
    ledger::add(handle, context_.handles);
    return handle;
  }

  template <typename T, typename List>
  static void set_list(const List& items, uint32_t tag, chassis_boxed_t& out) {
    T* copy = new T[items.size()];
    std::copy(items.begin(), items.end(), copy);
    out.tag = tag;
    out.value.list = {copy, items.size()};
  }

  void set_result(c10::IValue value, chassis_boxed_t& out) {
    out = {};
    if (value.isTensor()) {
      out.tag = CHASSIS_BOXED_TENSOR;
      out.value.tensor = make_handle(std::move(value).toTensor());
    } else if (value.isInt()) {
      out.tag = CHASSIS_BOXED_INT;
      out.value.i = value.toInt();
    } else if (value.isSymInt()) {
      out.tag = CHASSIS_BOXED_INT;
      out.value.i = value.toSymInt().guard_int(__FILE__, __LINE__);
    } else if (value.isDouble()) {
      out.tag = CHASSIS_BOXED_FLOAT;
      out.value.f = value.toDouble();
    } else if (value.isBool()) {
      out.tag = CHASSIS_BOXED_BOOL;
      out.value.i = value.toBool();
    } else if (value.isIntList()) {
      set_list<int64_t>(value.toIntVector(), CHASSIS_BOXED_INT_LIST, out);
    } else if (value.isDoubleList()) {
      set_list<double>(value.toDoubleVector(), CHASSIS_BOXED_FLOAT_LIST, out);
    } else if (value.isString()) {
      set_list<char>(value.toStringRef(), CHASSIS_BOXED_STRING, out);
    } else if (value.isTensorList()) {
      std::vector<chassis_tensor_t> handles;
      for (const at::Tensor& tensor : value.toTensorVector()) handles.push_back(make_handle(tensor));
      set_list<chassis_tensor_t>(handles, CHASSIS_BOXED_TENSOR_LIST, out);
    } else if (!value.isNone()) {
      throw plugin_error("the ABI cannot represent a result of type " + value.tagKind());
    }
  }

  const TableContext& context_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<chassis_operator>, std::less<>> found_;
  chassis_dispatch_t table_{};
};

}  // namespace

std::string_view operator_name(std::string_view schema) { return schema.substr(0, schema.find('(')); }

std::string operator_schema(std::string_view name) {
  const auto handle = find_operator(name);
  return handle ? toString(handle->schema()) : "";
}

bool serves_schema(std::string_view ours, std::string_view declared) {
  if (ours == declared) return true;
  constexpr std::string_view kEnd = ") -> ";
  const size_t ours_end = ours.find(kEnd), declared_end = declared.find(kEnd);
  if (ours_end == std::string_view::npos || declared_end == std::string_view::npos) return false;
  if (ours.substr(ours_end) != declared.substr(declared_end)) return false;
  const std::string_view arguments = declared.substr(0, declared_end);
  std::string_view more = ours.substr(0, ours_end);
  if (!more.starts_with(arguments)) return false;
  more.remove_prefix(arguments.size());
  while (!more.empty()) {
    if (!more.starts_with(", ")) return false;
    const std::string_view argument = more.substr(0, std::min(more.find(", ", 2), more.size()));
    if (argument.find('=') == std::string_view::npos) return false;
    more.remove_prefix(argument.size());
  }
  return true;
}

void check_operator_schemas(const Manifest& manifest) {
  for (const std::string& declared : manifest.operators) {
    const std::string ours = operator_schema(operator_name(declared));
    if (ours.empty())
      throw plugin_error(manifest.label() + " calls operator " + std::string(operator_name(declared)) +
                         ", which this LibTorch does not have");
    if (!serves_schema(ours, declared))
      throw plugin_error(manifest.label() + " was built for another schema of an operator: it expects \"" + declared +
                         "\", this LibTorch has \"" + ours + "\"");
  }
}

std::unique_ptr<Table> make_dispatch_table(const TableContext& context) {
  return std::make_unique<DispatchTable>(context);
}

}  // namespace chassis
