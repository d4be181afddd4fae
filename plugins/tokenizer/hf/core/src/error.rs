//! Errors of this crate: a kind that the ABI has a code for, and a message for the user.
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    InvalidArgument,
    FailedPrecondition,
    OutOfRange,
    NotFound,
    Internal,
}

#[derive(Clone, Debug)]
pub struct Error {
    pub kind: ErrorKind,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::InvalidArgument, message: shortened(message.into()) }
    }

    pub(crate) fn precondition(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::FailedPrecondition, message: shortened(message.into()) }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Internal, message: shortened(message.into()) }
    }
}

/// Leaves out the middle of a message: it may quote tokens and templates, which can have any length.
fn shortened(message: String) -> String {
    if message.len() <= 2 * KEPT {
        return message;
    }
    let head = (0..=KEPT).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
    let tail = (message.len() - KEPT..message.len()).find(|at| message.is_char_boundary(*at));
    let tail = tail.unwrap_or(message.len());
    format!("{} … ({} bytes) … {}", &message[..head], tail - head, &message[tail..])
}

const KEPT: usize = 2000;

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
