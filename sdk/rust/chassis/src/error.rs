//! Errors on this side, statuses on the other.
use crate::host::{str_of, text_of};
use crate::sys;
use std::fmt::{Debug, Display, Formatter};

pub type Result<T> = std::result::Result<T, Error>;

/// Codes of `chassis/status.h` that plugins use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// The user's configuration or data is wrong.
    InvalidArgument = sys::CHASSIS_INVALID_ARGUMENT as i32,
    NotFound = sys::CHASSIS_NOT_FOUND as i32,
    /// Out of memory or space; the message names requested and free bytes.
    ResourceExhausted = sys::CHASSIS_RESOURCE_EXHAUSTED as i32,
    FailedPrecondition = sys::CHASSIS_FAILED_PRECONDITION as i32,
    OutOfRange = sys::CHASSIS_OUT_OF_RANGE as i32,
    Unimplemented = sys::CHASSIS_UNIMPLEMENTED as i32,
    Internal = sys::CHASSIS_INTERNAL as i32,
    DataLoss = sys::CHASSIS_DATA_LOSS as i32,
}

/// A code and a message that tells the user what happened and what to do.
pub struct Error {
    code: i32,
    message: String,
    facts: Vec<(String, String)>,
    received: Option<Received>,
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Error { code: code as i32, message: message.into(), facts: Vec::new(), received: None }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(Code::InvalidArgument, message)
    }

    /// Attaches a fact, such as `("file", "tokenizer.json")`.
    pub fn with(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.facts.push((key.into(), value.into()));
        self
    }

    /// As in `chassis/status.h`; an error that came from the host may have a code that [`Code`] lacks.
    pub fn code(&self) -> i32 {
        self.code
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// `Ok` for NULL.
    ///
    /// # Safety
    /// `status` is NULL or a status of this host, which this call takes over.
    pub(crate) unsafe fn check(host: *const sys::chassis_host_t, status: *mut sys::chassis_status_t) -> Result<()> {
        if status.is_null() {
            return Ok(());
        }
        let received = Received { host, status };
        // SAFETY: the host's functions are [any], and the status lives in `received`.
        let (code, message) = unsafe {
            let code = (*host).status_code.map_or(sys::CHASSIS_UNKNOWN as i32, |code| code(status));
            let message = (*host).status_message.map_or(String::new(), |message| lossy(message(status)));
            (code, message)
        };
        Err(Error { code, message, facts: Vec::new(), received: Some(received) })
    }

    /// A status that the receiver releases; one that came from the host is returned unchanged.
    ///
    /// # Safety
    /// `host` is the host of the call.
    pub(crate) unsafe fn into_status(mut self, host: *const sys::chassis_host_t) -> *mut sys::chassis_status_t {
        // SAFETY: the functions are [any] and copy their texts; the frozen first size covers both members.
        unsafe {
            let new = (*host).status_new.expect("status_new is in every host");
            let status = match self.received.as_mut() {
                Some(received) => std::mem::replace(&mut received.status, std::ptr::null_mut()),
                None => new(host, self.code, str_of(&self.message), std::ptr::null_mut()),
            };
            if let Some(add) = (*host).status_add {
                for (key, value) in &self.facts {
                    add(status, str_of(key), str_of(value));
                }
            }
            status
        }
    }
}

/// # Safety
/// As [`text_of`].
unsafe fn lossy(text: sys::chassis_str_t) -> String {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { text_of(&text) }).into_owned()
}

impl Debug for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (code {})", self.message, self.code)
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// A status of the host, so that it is passed on with its causes and facts.
struct Received {
    host: *const sys::chassis_host_t,
    status: *mut sys::chassis_status_t,
}

// SAFETY: functions of statuses are [any], and nothing shares it.
unsafe impl Send for Received {}
unsafe impl Sync for Received {}

impl Drop for Received {
    fn drop(&mut self) {
        // SAFETY: the status is owned, and the host outlives every instance.
        unsafe {
            if let (Some(release), false) = ((*self.host).status_release, self.status.is_null()) {
                release(self.status);
            }
        }
    }
}
