// A tokenizer whose vocabulary is a list of words; other text is spelled by bytes, so that any text can be encoded and
// is decoded unchanged. The longest word wins.
use chassis::tokenizer::{Encoded, Info, Token, Tokenizer};
use chassis::{sys, Code, Error, Host, Level, Member, Opt, Result};
use std::collections::HashMap;

const NUM_BYTES: i32 = 256;
const EOS: i32 = NUM_BYTES; // words come after it

struct Words {
    texts: Vec<Vec<u8>>,    // by id
    spellings: Vec<String>, // by id: bytes as <0x0a>
    ids: HashMap<Vec<u8>, i32>,
    longest: usize,
    fingerprint: String,
}

impl Member for Words {
    const DOC: &'static str = "words of a list, and bytes for all other text";
    const OPTIONS: &'static [Opt] =
        &[Opt::string("words").default("\"the of and to in\"").doc("the words, with spaces between them")];

    fn create(host: Host) -> Result<Self> {
        let option = host.option_str("words")?;
        let mut texts: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        let mut spellings: Vec<String> = (0..=255).map(|byte: u8| format!("<0x{byte:02x}>")).collect();
        texts.push(Vec::new());
        spellings.push("<eos>".into());
        for word in option.split_whitespace() {
            if spellings.iter().any(|known| known == word) {
                let origin = host.option_origin("words")?;
                return Err(Error::invalid(format!("{origin}: the word '{word}' appears twice or is special")));
            }
            texts.push(word.into());
            spellings.push(word.into());
        }
        host.log(Level::Debug, &format!("{} words", texts.len() - EOS as usize - 1))?;
        let ids =
            texts.iter().zip(0..).filter(|(text, _)| !text.is_empty()).map(|(text, id)| (text.clone(), id)).collect();
        let longest = texts.iter().map(Vec::len).max().unwrap_or(1);
        let fingerprint = format!("words-1 {}", spellings[EOS as usize + 1..].join(" "));
        Ok(Words { texts, spellings, ids, longest, fingerprint })
    }
}

impl Words {
    fn checked(&self, id: i32) -> Result<usize> {
        usize::try_from(id).ok().filter(|&id| id < self.texts.len()).ok_or_else(|| {
            let message = format!("token id {id} is outside the vocabulary of {}", self.texts.len());
            Error::new(Code::OutOfRange, message)
        })
    }
}

impl Tokenizer for Words {
    fn info(&self) -> Result<Info<'_>> {
        Ok(Info {
            eos_id: Some(EOS),
            vocab_size: self.texts.len() as i64,
            fingerprint: &self.fingerprint,
            ..Info::default()
        })
    }

    fn encode(&self, text: &str, special: bool, out: &mut Encoded) -> Result<()> {
        let mut begin = 0;
        while begin < text.len() {
            let rest = &text.as_bytes()[begin..];
            if special && rest.starts_with(b"<eos>") {
                out.push(EOS, begin, begin + "<eos>".len());
                begin += "<eos>".len();
                continue;
            }
            let size = (1..=self.longest.min(rest.len())).rev().find(|&size| self.ids.contains_key(&rest[..size]));
            let size = size.expect("each byte is in the vocabulary");
            out.push(self.ids[&rest[..size]], begin, begin + size);
            begin += size;
        }
        Ok(())
    }

    fn decode(&self, ids: &[i32], keep_special: bool) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for &id in ids {
            let text = &self.texts[self.checked(id)?];
            bytes.extend_from_slice(if id == EOS && keep_special { b"<eos>" } else { text });
        }
        Ok(bytes)
    }

    fn token(&self, id: i32) -> Result<Token<'_>> {
        let text = &self.spellings[self.checked(id)?];
        let flags = if id == EOS { sys::CHASSIS_TOKEN_SPECIAL | sys::CHASSIS_TOKEN_ADDED } else { 0 };
        Ok(Token { text, flags })
    }

    fn id_of(&self, text: &str) -> Result<Option<i32>> {
        Ok(self.spellings.iter().position(|known| known == text).map(|id| id as i32))
    }
}

chassis::plugin! {
    tokenizer: Words;
    "requires=chassis.options/1", "requires=chassis.log/1", "swappable=1", "license=Apache-2.0"
}
