// Registers the simulated devices with LibTorch when the library is loaded: guards, streams, events and hooks.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tests/support/simulated_device/memory.hpp"
#include "tests/support/simulated_device/settings.hpp"
#include "tests/support/simulated_device/stream.hpp"

namespace simulated_device {
namespace {

c10::Device device_at(int index) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)}; }
int index_of(c10::Device device) { return device.has_index() ? device.index() : current_device(); }
c10::Stream torch_stream(const Stream& stream) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(stream.device()), static_cast<c10::StreamId>(stream.id()));
}
Stream& stream_of(const c10::Stream& stream) { return simulated_device::stream_of(stream.device_index(), stream.id()); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override { return device_at(current_device()); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(index_of(device) < num_devices(), "invalid device ordinal");
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { set_current_device(index_of(device)); }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(num_devices()); }

  c10::Stream getStream(c10::Device device) const override { return torch_stream(current_stream(index_of(device))); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return torch_stream(default_stream(index_of(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return torch_stream(new_stream(index_of(device)));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return torch_stream(exchange_current_stream(stream_of(stream)));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return static_cast<CUstream_st*>(&stream_of(stream));
  }
  bool queryStream(const c10::Stream& stream) const override { return stream_of(stream).is_idle(); }
  void synchronizeStream(const c10::Stream& stream) const override { stream_of(stream).wait(); }
  void synchronizeDevice(c10::DeviceIndex device) const override { synchronize(device); }

  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->record(stream_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) static_cast<Event*>(event)->block(stream_of(stream));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<Event*>(event)->mark()->is_reached();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) static_cast<Event*>(event)->mark()->wait();
  }
  double elapsedTime(void*, void*, c10::DeviceIndex) const override { return 0.0; }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    device_allocator().recordStream(memory, stream);
  }
};

// Random numbers come from the CPU's generator.
struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return num_devices() > 0; }
  bool hasCUDA() const override { return num_devices() > 0; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  at::Device getDeviceFromPtr(void* memory) const override {
    const int device = device_of_memory(memory);
    TORCH_CHECK(device >= 0,
                "The specified pointer resides on host memory and is not registered with any CUDA device.");
    return device_at(device);
  }
  bool isPinnedPtr(const void* memory) const override { return is_pinned(memory); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  at::Allocator* getCUDADeviceAllocator() const override { return &device_allocator(); }
  int getNumGPUs() const override { return num_devices(); }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(num_devices()); }
  c10::DeviceIndex current_device() const override { return getCurrentDevice(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(simulated_device::current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex previous = getCurrentDevice();
    set_current_device(device);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  void deviceSynchronize(c10::DeviceIndex device) const override { synchronize(device); }
  std::string showConfig() const override { return "a simulated device"; }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

[[maybe_unused]] const bool is_allocator_set = [] {
  c10::SetAllocator(c10::kCUDA, &device_allocator());
  return true;
}();

}  // namespace
}  // namespace simulated_device

namespace at {

C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", simulated_device::Hooks)

}  // namespace at

extern "C" int cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return 0;
}
