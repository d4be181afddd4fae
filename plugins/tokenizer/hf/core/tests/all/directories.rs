//! Directories that cannot be used, and the inputs of fingerprints.
use crate::{open, Folder};
use chassis_hf_core::{Encoded, ErrorKind, Tokenizer};

#[test]
fn other_forms_of_tokenizers_are_refused_by_name() {
    let folder = Folder::new("spm", &[("tokenizer.model", b"x")]);
    let error = folder.error();
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert!(error.message.contains("tokenizer.model") && error.message.contains("save_pretrained"), "{error}");
    let error = Folder::new("none", &[("config.json", b"{}")]).error();
    assert!(error.message.contains("there is no tokenizer.json"), "{error}");
    assert_eq!(Tokenizer::open("/no/such/folder".as_ref()).err().unwrap().kind, ErrorKind::NotFound);
}

#[test]
fn unknown_types_are_named_with_their_file() {
    for (part, old, new) in [
        ("normalizer", r#""type":"NFC""#, r#""type":"Rot13""#),
        (
            "pre_tokenizer.pretokenizers[1]",
            r#""type":"ByteLevel","add_prefix_space":false"#,
            r#""type":"Rot13","x":false"#,
        ),
        ("model", r#""type":"BPE""#, r#""type":"Rot13""#),
    ] {
        let folder = Folder::of_golden("unknown", "byte_level");
        let json = folder.read("tokenizer.json");
        assert!(json.contains(old), "{old}");
        folder.write("tokenizer.json", json.replacen(old, new, 1).as_bytes());
        let error = folder.error();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        let words = ["tokenizer.json", part, "'Rot13'", "known types are"];
        assert!(words.iter().all(|word| error.message.contains(word)), "{error}");
    }
}

#[test]
fn a_tokenizer_json_that_is_none_is_refused_with_its_place() {
    for (content, place) in
        [("{\n\"model\": }", ":2:"), ("[]", ":1:"), ("{}", "model"), (r#"{"model": {"type": "BPE"}}"#, "vocab")]
    {
        let error = Folder::new("broken", &[("tokenizer.json", content.as_bytes())]).error();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        assert!(error.message.contains(place), "{error}");
    }
}

#[test]
fn other_files_that_are_broken_are_named() {
    for name in ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"] {
        let folder = Folder::of_golden("other", "metaspace");
        folder.write(name, b"[\xff");
        let error = folder.error();
        assert!(error.kind == ErrorKind::InvalidArgument && error.message.contains(name), "{error}");
    }
    let folder = Folder::of_golden("other", "metaspace");
    folder.write("tokenizer_config.json", br#"{"chat_template": 1}"#);
    assert!(folder.error().message.contains("chat_template"));
}

#[test]
fn dropout_is_refused_since_ids_would_be_random() {
    let folder = Folder::of_golden("dropout", "metaspace");
    let json = folder.read("tokenizer.json").replacen(r#""dropout":null"#, r#""dropout":0.1"#, 1);
    folder.write("tokenizer.json", json.as_bytes());
    let error = folder.error();
    assert!(error.kind == ErrorKind::FailedPrecondition && error.message.contains("0.1"), "{error}");
}

#[test]
fn added_tokens_whose_ids_do_not_fit_are_refused_with_both() {
    let folder = Folder::of_golden("ids", "metaspace");
    folder.write("added_tokens.json", br#"{"<pad>": 9999}"#);
    let error = folder.error();
    let pad = open("metaspace").info().pad_id;
    assert!(error.message.contains("9999") && error.message.contains(&pad.to_string()), "{error}");
}

#[test]
fn truncation_and_padding_of_the_file_are_not_applied() {
    let folder = Folder::of_golden("truncation", "metaspace");
    let truncation = r#""truncation":{"direction":"Right","max_length":3,"strategy":"LongestFirst","stride":0}"#;
    let padding = concat!(
        r#""padding":{"strategy":{"Fixed":50},"direction":"Right","pad_to_multiple_of":null,"#,
        r#""pad_id":0,"pad_type_id":0,"pad_token":"<unk>"}"#
    );
    let json = folder.read("tokenizer.json");
    let json = json.replacen(r#""truncation":null"#, truncation, 1).replacen(r#""padding":null"#, padding, 1);
    assert!(json.contains(truncation) && json.contains(padding));
    folder.write("tokenizer.json", json.as_bytes());
    let mut expected = Encoded::default();
    open("metaspace").encode("The quick brown fox", false, &mut expected).unwrap();
    let mut out = Encoded::default();
    Tokenizer::open(&folder.0).unwrap().encode("The quick brown fox", false, &mut out).unwrap();
    assert_eq!(out, expected);
}

#[test]
fn fingerprints_change_with_what_decides_ids_and_with_nothing_else() {
    let expected = open("byte_level").info().fingerprint.clone();
    assert_eq!(expected.len(), 64);
    let folder = Folder::of_golden("fingerprint", "byte_level");
    let fingerprint = || Tokenizer::open(&folder.0).unwrap().info().fingerprint.clone();
    folder.write("chat_template.jinja", b"x");
    assert_eq!(fingerprint(), expected);
    let config = folder.read("tokenizer_config.json");
    folder.write("tokenizer_config.json", config.replacen("\"lstrip\": false", "\"lstrip\": true", 1).as_bytes());
    assert_ne!(fingerprint(), expected);
    folder.write("tokenizer_config.json", config.as_bytes());
    assert_eq!(fingerprint(), expected);
    folder.write("tokenizer.json", folder.read("tokenizer.json").replacen("NFC", "NFD", 1).as_bytes());
    assert_ne!(fingerprint(), expected);
}
