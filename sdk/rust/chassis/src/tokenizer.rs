//! Kind "tokenizer": `chassis/kind/tokenizer.h` has the contract of every function.
use crate::error::{Code, Error, Result};
use crate::host::{bytes_of, str_of, text_of, utf8_of};
use crate::member::{Instance, Kind, Member};
use crate::sized::{read_sized, write_sized};
use crate::sys;
use std::ffi::{OsStr, c_void};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub const KIND: Kind = Kind { name: "tokenizer", min_host_minor: sys::CHASSIS_ABI_OLDEST_MINOR };

/// Functions with `&self` are \[any\], called from several threads at once; a tokenizer starts no threads for them.
pub trait Tokenizer: Member {
    /// True if `open` reads files.
    const READS_FILES: bool = false;
    /// True if `render` is offered.
    const RENDERS: bool = false;
    /// True if `train` is offered.
    const TRAINS: bool = false;

    /// \[control\] Called once, before all others but `train`. None: there is no model directory; a tokenizer that
    /// needs files returns InvalidArgument.
    fn open(&mut self, _directory: Option<&Path>) -> Result<()> {
        Err(not_offered("open"))
    }
    fn info(&self) -> Result<Info<'_>>;
    /// Ids of one text, without ids that it does not spell (no BOS, no EOS). `special`: special tokens that the text
    /// spells become those tokens; else plain text. `out` is empty.
    fn encode(&self, text: &str, special: bool, out: &mut Encoded) -> Result<()>;
    /// Bytes of the ids, in one text. An id outside the vocabulary is OutOfRange.
    fn decode(&self, ids: &[i32], keep_special: bool) -> Result<Vec<u8>>;
    /// One entry of the vocabulary; OutOfRange as in decode.
    fn token(&self, id: i32) -> Result<Token<'_>>;
    /// The id of the entry that the vocabulary spells as `text`.
    fn id_of(&self, text: &str) -> Result<Option<i32>>;
    /// Renders a conversation. InvalidArgument: the template refuses it. FailedPrecondition: spans are wanted and
    /// cannot be proven for this template.
    fn render(&self, _chat: &Chat<'_>) -> Result<Rendered> {
        Err(not_offered("render"))
    }
    /// \[control\] Makes a vocabulary from texts, and writes the files of a directory that `open` reads.
    fn train(&self, _vocabulary: &Vocabulary, _texts: &mut Texts<'_>, _files: &mut Files<'_>) -> Result<()> {
        Err(not_offered("train"))
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Info<'a> {
    pub bos_id: Option<i32>,
    pub eos_id: Option<i32>,
    pub pad_id: Option<i32>,
    pub unk_id: Option<i32>,
    /// Ids are below this.
    pub vocab_size: i64,
    /// A document begins with bos_id.
    pub adds_bos: bool,
    /// Changes whenever some text would get other ids.
    pub fingerprint: &'a str,
    /// Jinja source of the opened directory; empty: it has none.
    pub chat_template: &'a str,
}

/// `ids[i]` covers bytes `begin[i]..end[i]` of the text; the two are equal for an id that covers none. `begin` never
/// decreases.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    pub ids: Vec<i32>,
    pub begin: Vec<u64>,
    pub end: Vec<u64>,
}

impl Encoded {
    pub fn push(&mut self, id: i32, begin: usize, end: usize) {
        self.ids.push(id);
        self.begin.push(begin as u64);
        self.end.push(end as u64);
    }
    pub fn clear(&mut self) {
        self.ids.clear();
        self.begin.clear();
        self.end.clear();
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Token<'a> {
    /// As the vocabulary spells it.
    pub text: &'a str,
    /// `sys::CHASSIS_TOKEN_…`
    pub flags: u32,
}

/// A conversation to be rendered as text. Empty texts are left out.
#[derive(Clone, Copy, Debug)]
pub struct Chat<'a> {
    pub messages_json: &'a str,
    pub tools_json: &'a str,
    pub variables_json: &'a str,
    /// Jinja source to use instead of the directory's.
    pub template_text: &'a str,
    pub unix_time_s: i64,
    pub generation_prompt: bool,
    pub spans: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Rendered {
    pub text: String,
    /// In the order of `begin`; they do not overlap.
    pub spans: Vec<Span>,
}

/// Bytes of the rendered text that come from a message of the assistant.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// `sys::CHASSIS_LEAF_…`
    pub leaf: u32,
    pub message: u64,
    pub begin: u64,
    pub end: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Vocabulary {
    /// With special tokens.
    pub vocab_size: i64,
    /// Pairs that occur less often are not merged.
    pub min_frequency: u64,
    /// At most; at least 1.
    pub num_threads: u32,
}

/// The texts to train on, one after the other.
pub struct Texts<'a> {
    host: *const sys::chassis_host_t,
    at: *const sys::chassis_text_source_t,
    text: sys::chassis_str_t,
    call: PhantomData<&'a ()>,
}

impl Texts<'_> {
    #[allow(clippy::should_implement_trait)] // an item is valid until the next call
    pub fn next(&mut self) -> Result<Option<&str>> {
        // SAFETY: the source is valid for the call of `train` that this borrows from, the text until the next one.
        unsafe {
            let next = read_sized(self.at)?.next.ok_or_else(|| Error::invalid("a text source without next"))?;
            let mut is_end = 0;
            Error::check(self.host, next(self.at, &mut self.text, &mut is_end))?;
            if is_end != 0 { Ok(None) } else { utf8_of(&self.text, "a text to train on").map(Some) }
        }
    }
}

/// The files of the directory that is being made.
pub struct Files<'a> {
    host: *const sys::chassis_host_t,
    at: *const sys::chassis_file_sink_t,
    call: PhantomData<&'a ()>,
}

impl Files<'_> {
    /// `name` has no folder.
    pub fn write(&mut self, name: &str, content: &[u8]) -> Result<()> {
        // SAFETY: the sink is valid for the call of `train` that this borrows from.
        unsafe {
            let file = read_sized(self.at)?.file.ok_or_else(|| Error::invalid("a file sink without file"))?;
            Error::check(self.host, file(self.at, str_of(name), bytes_of(content)))
        }
    }
}

/// For `plugin!`.
///
/// # Safety
/// `host` outlives the instance.
#[doc(hidden)]
pub unsafe fn create<T: Tokenizer>(host: *const sys::chassis_host_t) -> Result<*mut sys::chassis_instance_t> {
    // SAFETY: the caller's promise.
    unsafe { Instance::<T>::create(host, Table::<T>::get_interface) }
}

fn not_offered(function: &str) -> Error {
    Error::new(Code::Unimplemented, format!("this tokenizer does not offer {function}"))
}

fn check_flags(flags: u32, known: u32, what: &str) -> Result<()> {
    if flags & !known == 0 {
        Ok(())
    } else {
        Err(Error::invalid(format!("{what}: unknown flags {:#x}", flags & !known)))
    }
}

/// # Safety
/// As [`text_of`] for `count` items.
unsafe fn slice<'a, T>(items: *const T, count: u64) -> &'a [T] {
    // SAFETY: the caller's promise; an empty array may have any address.
    if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(items, count as usize) } }
}

struct Table<T>(PhantomData<T>);

type This = *mut sys::chassis_instance_t;
type Status = *mut sys::chassis_status_t;

impl<T: Tokenizer> Table<T> {
    const TABLE: sys::chassis_tokenizer_t = sys::chassis_tokenizer_t {
        struct_size: size_of::<sys::chassis_tokenizer_t>() as u32,
        reserved0: 0,
        open: if T::READS_FILES { Some(Self::open) } else { None },
        info: Some(Self::info),
        encode: Some(Self::encode),
        decode: Some(Self::decode),
        token: Some(Self::token),
        id_of: Some(Self::id_of),
        render: if T::RENDERS { Some(Self::render) } else { None },
        train: if T::TRAINS { Some(Self::train) } else { None },
    };

    unsafe extern "C" fn get_interface(_: *const sys::chassis_instance_t, id: sys::chassis_str_t) -> *const c_void {
        // SAFETY: the text is borrowed for the call.
        if unsafe { text_of(&id) } == sys::CHASSIS_TOKENIZER_ID.as_bytes() {
            std::ptr::from_ref(const { &Self::TABLE }).cast()
        } else {
            std::ptr::null()
        }
    }

    // SAFETY of all below: the host passes the instance that the table belongs to, and borrows its arguments for the
    // call; `open` and `train` are [control].

    unsafe extern "C" fn open(this: This, directory: sys::chassis_str_t) -> Status {
        unsafe {
            Instance::<T>::call_mut(this, |tokenizer| {
                let directory = text_of(&directory);
                tokenizer.open((!directory.is_empty()).then(|| Path::new(OsStr::from_bytes(directory))))
            })
        }
    }

    unsafe extern "C" fn info(this: This, out: *mut sys::chassis_tokenizer_info_t) -> Status {
        unsafe {
            Instance::<T>::call(this, |tokenizer| {
                let info = tokenizer.info()?;
                let mut flags = if info.adds_bos { sys::CHASSIS_TOKENIZER_ADDS_BOS } else { 0 };
                if T::TRAINS {
                    flags |= sys::CHASSIS_TOKENIZER_TRAINS;
                }
                let ours = sys::chassis_tokenizer_info_t {
                    struct_size: 0,
                    flags,
                    bos_id: info.bos_id.unwrap_or(-1),
                    eos_id: info.eos_id.unwrap_or(-1),
                    pad_id: info.pad_id.unwrap_or(-1),
                    unk_id: info.unk_id.unwrap_or(-1),
                    vocab_size: info.vocab_size,
                    fingerprint: str_of(info.fingerprint),
                    chat_template: str_of(info.chat_template),
                };
                write_sized(&ours, out)
            })
        }
    }

    unsafe extern "C" fn encode(
        this: This,
        texts: *const sys::chassis_str_t,
        num_texts: u64,
        flags: u32,
        sink: *const sys::chassis_token_sink_t,
    ) -> Status {
        unsafe {
            Instance::<T>::call(this, |tokenizer| {
                check_flags(flags, sys::CHASSIS_ENCODE_SPECIAL, "encode")?;
                let tokens = read_sized(sink)?.tokens.ok_or_else(|| Error::invalid("a token sink without tokens"))?;
                let mut out = Encoded::default();
                for (i, text) in slice(texts, num_texts).iter().enumerate() {
                    let text = utf8_of(text, &format!("text {i} of {num_texts}"))?;
                    out.clear();
                    tokenizer.encode(text, flags & sys::CHASSIS_ENCODE_SPECIAL != 0, &mut out)?;
                    assert_eq!((out.ids.len(), out.ids.len()), (out.begin.len(), out.end.len()), "ids and offsets");
                    let count = out.ids.len() as u64;
                    tokens(sink, i as u64, out.ids.as_ptr(), out.begin.as_ptr(), out.end.as_ptr(), count);
                }
                Ok(())
            })
        }
    }

    unsafe extern "C" fn decode(
        this: This,
        ids: *const i32,
        num_ids: u64,
        flags: u32,
        sink: *const sys::chassis_text_sink_t,
    ) -> Status {
        unsafe {
            Instance::<T>::call(this, |tokenizer| {
                check_flags(flags, sys::CHASSIS_DECODE_KEEP_SPECIAL, "decode")?;
                let write = read_sized(sink)?.text.ok_or_else(|| Error::invalid("a text sink without text"))?;
                let keep_special = flags & sys::CHASSIS_DECODE_KEEP_SPECIAL != 0;
                let text = tokenizer.decode(slice(ids, num_ids), keep_special)?;
                write(sink, bytes_of(&text));
                Ok(())
            })
        }
    }

    unsafe extern "C" fn token(this: This, id: i32, out: *mut sys::chassis_token_t) -> Status {
        unsafe {
            Instance::<T>::call(this, |tokenizer| {
                let token = tokenizer.token(id)?;
                let ours = sys::chassis_token_t { struct_size: 0, flags: token.flags, text: str_of(token.text) };
                write_sized(&ours, out)
            })
        }
    }

    unsafe extern "C" fn id_of(this: This, text: sys::chassis_str_t, out: *mut i32) -> Status {
        unsafe {
            Instance::<T>::call(this, |tokenizer| {
                // No entry of a vocabulary is spelled by bytes that are not UTF-8.
                *out = match std::str::from_utf8(text_of(&text)) {
                    Ok(text) => tokenizer.id_of(text)?.unwrap_or(-1),
                    Err(_) => -1,
                };
                Ok(())
            })
        }
    }

    unsafe extern "C" fn render(
        this: This,
        chat: *const sys::chassis_chat_t,
        sink: *const sys::chassis_chat_sink_t,
    ) -> Status {
        unsafe {
            Instance::<T>::call(this, |tokenizer| {
                let (chat, to) = (read_sized(chat)?, read_sized(sink)?);
                let (Some(write_text), Some(write_span)) = (to.text, to.span) else {
                    return Err(Error::invalid("a chat sink without text or span"));
                };
                check_flags(chat.flags, sys::CHASSIS_CHAT_GENERATION_PROMPT | sys::CHASSIS_CHAT_SPANS, "render")?;
                let rendered = tokenizer.render(&Chat {
                    messages_json: utf8_of(&chat.messages_json, "messages_json")?,
                    tools_json: utf8_of(&chat.tools_json, "tools_json")?,
                    variables_json: utf8_of(&chat.variables_json, "variables_json")?,
                    template_text: utf8_of(&chat.template_text, "the template")?,
                    unix_time_s: chat.unix_time_s,
                    generation_prompt: chat.flags & sys::CHASSIS_CHAT_GENERATION_PROMPT != 0,
                    spans: chat.flags & sys::CHASSIS_CHAT_SPANS != 0,
                })?;
                write_text(sink, str_of(&rendered.text));
                for span in &rendered.spans {
                    let struct_size = size_of::<sys::chassis_chat_span_t>() as u32;
                    let Span { leaf, message, begin, end } = *span;
                    write_span(sink, &sys::chassis_chat_span_t { struct_size, leaf, message, begin, end });
                }
                Ok(())
            })
        }
    }

    unsafe extern "C" fn train(
        this: This,
        vocabulary: *const sys::chassis_vocabulary_t,
        source: *const sys::chassis_text_source_t,
        sink: *const sys::chassis_file_sink_t,
    ) -> Status {
        unsafe {
            Instance::<T>::call_with_host(this, |tokenizer, host| {
                let wanted = read_sized(vocabulary)?;
                let vocabulary = Vocabulary {
                    vocab_size: wanted.vocab_size,
                    min_frequency: wanted.min_frequency,
                    num_threads: wanted.num_threads.max(1),
                };
                let text = str_of("");
                let mut texts = Texts { host, at: source, text, call: PhantomData };
                let mut files = Files { host, at: sink, call: PhantomData };
                tokenizer.train(&vocabulary, &mut texts, &mut files)
            })
        }
    }
}
