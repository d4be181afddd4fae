//! The host as a plugin sees it: options, log, metrics and threads.
use crate::error::{Code, Error, Result};
use crate::sized::read_sized;
use crate::sys::{self, Growable};

/// Texts as they cross the boundary; borrowed.
pub(crate) fn str_of(text: &str) -> sys::chassis_str_t {
    bytes_of(text.as_bytes())
}

pub(crate) fn bytes_of(bytes: &[u8]) -> sys::chassis_str_t {
    sys::chassis_str_t { ptr: bytes.as_ptr(), len: bytes.len() as u64 }
}

/// # Safety
/// The text is borrowed for as long as the result is used.
pub(crate) unsafe fn text_of(text: &sys::chassis_str_t) -> &[u8] {
    // SAFETY: the caller's promise; an empty text may have any pointer.
    if text.len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(text.ptr, text.len as usize) } }
}

/// Text that must be UTF-8; `what` names it in the error.
///
/// # Safety
/// As [`text_of`].
pub(crate) unsafe fn utf8_of<'a>(text: &'a sys::chassis_str_t, what: &str) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    std::str::from_utf8(unsafe { text_of(text) })
        .map_err(|error| Error::invalid(format!("{what} is not UTF-8 at byte {}", error.valid_up_to())))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Level {
    Debug = sys::CHASSIS_LOG_DEBUG,
    Info = sys::CHASSIS_LOG_INFO,
    Warn = sys::CHASSIS_LOG_WARN,
    Error = sys::CHASSIS_LOG_ERROR,
}

/// The host of one instance; a member keeps it as long as it lives. Functions are \[any\] unless they say otherwise.
/// They fail with FAILED_PRECONDITION if this host lacks the service.
pub struct Host {
    table: *const sys::chassis_host_t,
}

// SAFETY: its functions are [any], and the ones that are not are called from the thread that the kind states.
unsafe impl Send for Host {}
unsafe impl Sync for Host {}

impl Host {
    /// # Safety
    /// The table outlives the instance that this host is given to.
    pub(crate) unsafe fn new(table: *const sys::chassis_host_t) -> Self {
        Host { table }
    }

    /// Logs one line, which is shown with the plugin's name if messages of this level are shown.
    pub fn log(&self, level: Level, message: &str) -> Result<()> {
        let (log, at) = self.service::<sys::chassis_log_t>(sys::CHASSIS_LOG_ID)?;
        // SAFETY: `at` is the table that `log` was read from; the text is borrowed for the call.
        unsafe {
            if log.enabled.is_none_or(|enabled| enabled(at, level as u32) != 0) {
                log.write.ok_or_else(|| missing("chassis.log/1 write"))?(at, level as u32, str_of(message));
            }
        }
        Ok(())
    }

    /// Reports that something was ignored, changed or dropped: logged the first time, counted under `key` every time.
    pub fn count(&self, key: &str, message: &str) -> Result<()> {
        let (log, at) = self.service::<sys::chassis_log_t>(sys::CHASSIS_LOG_ID)?;
        // SAFETY: as in log().
        unsafe { log.count.ok_or_else(|| missing("chassis.log/1 count"))?(at, str_of(key), str_of(message)) };
        Ok(())
    }

    /// \[step\] Sets a scalar of the current step; the last value wins.
    pub fn metric(&self, name: &str, value: f64) -> Result<()> {
        let (metrics, at) = self.service::<sys::chassis_metrics_t>(sys::CHASSIS_METRICS_ID)?;
        // SAFETY: as in log().
        unsafe { metrics.set.ok_or_else(|| missing("chassis.metrics/1 set"))?(at, str_of(name), value) };
        Ok(())
    }

    /// The number of threads that the user allows; a plugin whose library has its own threads uses no more.
    pub fn num_threads(&self) -> Result<u32> {
        let (task, at) = self.service::<sys::chassis_task_t>(sys::CHASSIS_TASK_ID)?;
        // SAFETY: as in log().
        Ok(unsafe { task.num_threads.ok_or_else(|| missing("chassis.task/1 num_threads"))?(at) }.max(1))
    }

    /// \[control\]
    pub fn option_bool(&self, name: &str) -> Result<bool> {
        self.option(name, |options| options.get_bool).map(|value: u32| value != 0)
    }

    /// \[control\]
    pub fn option_int(&self, name: &str) -> Result<i64> {
        self.option(name, |options| options.get_int)
    }

    /// \[control\]
    pub fn option_float(&self, name: &str) -> Result<f64> {
        self.option(name, |options| options.get_float)
    }

    /// \[control\]
    pub fn option_str(&self, name: &str) -> Result<String> {
        self.option_text(name, |options| options.get_string)
    }

    /// \[control\] Any option as JSON text; lists and tables are read this way.
    pub fn option_json(&self, name: &str) -> Result<String> {
        self.option_text(name, |options| options.get_json)
    }

    /// \[control\] "file:line:column" of the value, or "default", for error messages.
    pub fn option_origin(&self, name: &str) -> Result<String> {
        self.option_text(name, |options| options.origin)
    }

    fn option_text(
        &self,
        name: &str,
        getter: impl FnOnce(&sys::chassis_options_t) -> Getter<sys::chassis_str_t>,
    ) -> Result<String> {
        let text = self.option(name, getter)?;
        // SAFETY: option texts are valid as long as the instance.
        unsafe { utf8_of(&text, &format!("option '{name}'")) }.map(String::from)
    }

    fn option<T: Zero>(&self, name: &str, getter: impl FnOnce(&sys::chassis_options_t) -> Getter<T>) -> Result<T> {
        let (options, at) = self.service::<sys::chassis_options_t>(sys::CHASSIS_OPTIONS_ID)?;
        let getter = getter(&options).ok_or_else(|| missing("a getter of chassis.options/1"))?;
        let mut value = T::ZERO;
        // SAFETY: as in log(); the host writes one T.
        unsafe { Error::check(self.table, getter(at, str_of(name), &mut value)) }?;
        Ok(value)
    }

    /// A copy of a service's table, and its address for calls.
    fn service<T: Growable>(&self, id: &str) -> Result<(T, *const T)> {
        // SAFETY: the host outlives the instance, and so do the tables of its services.
        unsafe {
            let get_service = (*self.table).get_service.expect("get_service is in every host");
            let table = get_service(self.table, str_of(id)).cast::<T>();
            if table.is_null() {
                return Err(missing(id));
            }
            Ok((read_sized(table)?, table))
        }
    }
}

fn missing(id: &str) -> Error {
    Error::new(Code::FailedPrecondition, format!("this host has no service {id}"))
}

type Getter<T> = Option<
    unsafe extern "C" fn(*const sys::chassis_options_t, sys::chassis_str_t, *mut T) -> *mut sys::chassis_status_t,
>;

/// Types of the values that are read from options.
trait Zero {
    const ZERO: Self;
}
impl Zero for u32 {
    const ZERO: u32 = 0;
}
impl Zero for i64 {
    const ZERO: i64 = 0;
}
impl Zero for f64 {
    const ZERO: f64 = 0.0;
}
impl Zero for sys::chassis_str_t {
    const ZERO: sys::chassis_str_t = sys::chassis_str_t { ptr: std::ptr::null(), len: 0 };
}
