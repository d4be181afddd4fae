//! Turns the library's panics into errors, and bounds the length of the texts that normalizers make.
use crate::error::{Error, Result};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Mutex, PoisonError};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{NormalizedString, Normalizer};

/// Runs a part of the library; `part` is the file and the key that decides what it does.
pub(crate) fn guarded<T>(part: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or_default();
        Err(Error::invalid(if text.contains("Onig") {
            let cause = text.rsplit(": ").next().unwrap_or_default();
            format!(
                "{part}: a regular expression gave up on the text ({cause}); split long runs of one character in the \
                 data, or use an expression that does not backtrack"
            )
        } else {
            format!("{part}: the tokenizers library cannot use it ({}); mend or remove this part", first_line(text))
        }))
    })
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

const GROWTH: usize = 64;
const FURTHER_BYTES: usize = 1 << 20;

/// A normalizer that fails if its result exceeds a multiple of the length of its input.
pub(crate) struct Bounded<'a> {
    normalizer: &'a NormalizerWrapper,
    failed: Mutex<Option<String>>,
}

impl Bounded<'_> {
    pub(crate) fn new(normalizer: &NormalizerWrapper) -> Bounded<'_> {
        Bounded { normalizer, failed: Mutex::new(None) }
    }

    pub(crate) fn check(self, file: &str) -> Result<()> {
        match self.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(text) => Err(Error::invalid(format!("{file}: normalizer: {text}"))),
            None => Ok(()),
        }
    }

    fn step(&self, normalizer: &NormalizerWrapper, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let num_bytes = text.len_original();
        let limit = num_bytes.saturating_mul(GROWTH).saturating_add(FURTHER_BYTES);
        let check = |length: usize| {
            if length <= limit {
                return Ok(());
            }
            let text = format!("it makes {length} bytes or more of a text of {num_bytes}; the limit is {limit}");
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.clone());
            Err(text.into())
        };
        match normalizer {
            NormalizerWrapper::Sequence(steps) => steps.as_ref().iter().try_for_each(|step| self.step(step, text)),
            other => {
                if let NormalizerWrapper::Replace(replace) = other {
                    if replace.content.len() > GROWTH {
                        check(text.len().saturating_mul(replace.content.len()))?;
                    }
                }
                other.normalize(text)?;
                check(text.len())
            }
        }
    }
}

impl Normalizer for Bounded<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        self.step(self.normalizer, text)
    }
}
