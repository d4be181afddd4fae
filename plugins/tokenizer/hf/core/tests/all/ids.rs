//! Ids, offsets and decoding, against transformers and against themselves.
use crate::{golden_json, open, Folder};
use chassis_hf_core::{Encoded, ErrorKind, Tokenizer, TOKEN_ADDED, TOKEN_SPECIAL, TOKEN_UNUSED};
use serde_json::Value;

const NAMES: [&str; 2] = ["byte_level", "metaspace"];

fn ids(value: &Value) -> Vec<i32> {
    value.as_array().unwrap().iter().map(|id| id.as_i64().unwrap() as i32).collect()
}

#[test]
fn ids_and_byte_offsets_equal_those_of_transformers() {
    for name in NAMES {
        let tokenizer = open(name);
        let golden = golden_json(&format!("{name}.json"));
        let mut out = Encoded::default();
        for encoding in golden["encodings"].as_array().unwrap() {
            let text = encoding["text"].as_str().unwrap();
            tokenizer.encode(text, true, &mut out).unwrap();
            assert_eq!(out.ids, ids(&encoding["ids"]), "{name} {text:?}");
            let offsets: Vec<Value> = out.begin.iter().zip(&out.end).map(|(b, e)| serde_json::json!([b, e])).collect();
            assert_eq!(offsets, *encoding["offsets"].as_array().unwrap(), "{name} {text:?}");
            tokenizer.encode(text, false, &mut out).unwrap();
            assert_eq!(out.ids, ids(&encoding["plain"]), "{name} {text:?} as plain text");
        }
    }
}

#[test]
fn decoded_texts_equal_those_of_transformers() {
    for name in NAMES {
        let tokenizer = open(name);
        for decoding in golden_json(&format!("{name}.json"))["decodings"].as_array().unwrap() {
            let ids = ids(&decoding["ids"]);
            let text = |keep| String::from_utf8(tokenizer.decode(&ids, keep).unwrap()).unwrap();
            assert_eq!(text(false), decoding["text"].as_str().unwrap(), "{name} {ids:?}");
            assert_eq!(text(true), decoding["kept"].as_str().unwrap(), "{name} {ids:?}");
        }
    }
}

#[test]
fn special_ids_and_the_size_equal_those_of_transformers() {
    for name in NAMES {
        let tokenizer = open(name);
        let info = tokenizer.info();
        let golden = &golden_json(&format!("{name}.json"))["info"];
        let got = [("bos_id", info.bos_id), ("eos_id", info.eos_id), ("pad_id", info.pad_id), ("unk_id", info.unk_id)];
        got.iter().for_each(|(key, id)| assert_eq!(golden[key], *id, "{name} {key}"));
        assert_eq!(golden["vocab_size"], info.vocab_size, "{name}");
        assert_eq!(golden["adds_bos"], info.adds_bos, "{name}");
    }
}

#[test]
fn the_post_processor_alone_says_whether_a_text_begins_with_bos() {
    for added in [true, false] {
        let folder = Folder::of_golden("add-bos", "metaspace");
        let config = format!("{{\"add_bos_token\": {added}, \"add_eos_token\": {}}}", !added);
        folder.write("tokenizer_config.json", config.as_bytes());
        assert!(Tokenizer::open(&folder.0).unwrap().info().adds_bos, "{added}");
    }
}

#[test]
fn the_token_that_the_post_processor_adds_is_bos_without_a_name() {
    let folder = Folder::of_golden("unnamed-bos", "metaspace");
    folder.write("tokenizer_config.json", b"{}");
    folder.write("special_tokens_map.json", b"{}");
    let tokenizer = Tokenizer::open(&folder.0).unwrap();
    assert_eq!((tokenizer.info().bos_id, tokenizer.info().adds_bos), (open("metaspace").info().bos_id, true));
}

#[test]
fn offsets_never_go_back_and_parts_of_a_character_share_its_range() {
    for name in NAMES {
        let tokenizer = open(name);
        let mut out = Encoded::default();
        tokenizer.encode("ab 𓀀é\u{301} \u{200b}𓀀", true, &mut out).unwrap();
        assert!(out.begin.windows(2).all(|two| two[0] <= two[1]), "{name} {out:?}");
        let parts = out.begin.iter().zip(&out.end).filter(|(begin, end)| (**begin, **end) == (3, 7)).count();
        assert_eq!(parts, 4, "{name} {out:?}");
    }
}

#[test]
fn entries_have_their_flags_and_spelling() {
    let tokenizer = open("byte_level");
    let extra = tokenizer.id_of("<|extra|>");
    assert_eq!(i64::from(extra), tokenizer.info().vocab_size - 1);
    assert_eq!(tokenizer.token(extra).unwrap(), (TOKEN_ADDED | TOKEN_SPECIAL, "<|extra|>"));
    assert_eq!(tokenizer.token(tokenizer.id_of("<think>")).unwrap(), (TOKEN_ADDED, "<think>"));
    assert_eq!(tokenizer.token(tokenizer.id_of("Ġthe")).unwrap(), (0, "Ġthe"));
    assert_eq!(tokenizer.id_of("no such entry"), -1);
    for id in [-1, extra + 1] {
        let error = tokenizer.token(id).unwrap_err();
        assert_eq!(error.kind, ErrorKind::OutOfRange);
        assert!(
            error.message.contains(&format!("{id}")) && error.message.contains(&format!("{}", extra + 1)),
            "{error}"
        );
        assert_eq!(tokenizer.decode(&[0, id], true).unwrap_err().kind, ErrorKind::OutOfRange);
    }
}

#[test]
fn an_id_between_others_may_be_unused() {
    let folder = crate::Folder::of_golden("unused", "metaspace");
    folder.write("added_tokens.json", b"{}");
    let json = folder.read("tokenizer.json");
    let (old, new) = ("\"ell\":", "\"ell\":1000,\"unused\":");
    assert!(json.contains(old));
    folder.write("tokenizer.json", json.replacen(old, new, 1).as_bytes());
    let tokenizer = chassis_hf_core::Tokenizer::open(&folder.0).unwrap();
    assert!(tokenizer.info().vocab_size > 1000);
    assert_eq!(tokenizer.token(900).unwrap(), (TOKEN_UNUSED, ""));
    assert_eq!(tokenizer.decode(&[900], true).unwrap(), b"");
    assert_eq!(tokenizer.id_of(""), -1);
}

#[test]
fn a_word_that_would_take_too_much_memory_is_refused() {
    let num_bytes = (16 << 20) + 1;
    for name in NAMES {
        let error = open(name).encode(&"a".repeat(num_bytes), false, &mut Encoded::default()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        let found = error.message.contains("the limit is 16777216; divide the word in the data");
        assert!(found && error.message.contains("tokenizer.json: the text has a word of 167772"), "{name}: {error}");
    }
    let words = "a ".repeat(num_bytes / 2 + 1);
    open("byte_level").encode(&words, false, &mut Encoded::default()).unwrap();
}

#[test]
fn threads_get_the_same_ids_at_once() {
    let tokenizer = open("byte_level");
    let text = "The quick brown fox, 😀 Привет\n".repeat(50);
    let mut expected = Encoded::default();
    tokenizer.encode(&text, false, &mut expected).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut out = Encoded::default();
                for _ in 0..20 {
                    tokenizer.encode(&text, false, &mut out).unwrap();
                    assert_eq!(out, expected);
                }
            });
        }
    });
}
