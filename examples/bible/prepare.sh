#!/bin/sh
# A real corpus out of two Debian packages: rows {"text": ...}, a chapter of the King James Bible or an entry of
# the Jargon File each. Every twentieth of both is held out. usage: prepare.sh DIR
set -eu
out=$1
mkdir -p "$out"
[ -s "$out/train.txt" ] && exit 0 # written last

# A text on standard input whose rows are closed by a line "\f" -> JSONL. Held-out rows go to a second file.
rows() {
    sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/\t/\\t/g' -e 's/[\x01-\x08\x0b\x0e-\x1f]//g' |
    awk -v train="$1" -v eval="$2" '
        function flush() {
            sub(/(\\n)+$/, "", text)
            if (text != "") print "{\"text\": \"" text "\"}" > (n++ % 20 == 19 ? eval : train)
            text = ""
        }
        $0 == "\f" { flush(); next }
        { text = text $0 "\\n" }
        END { flush() }'
}

# "Ge1:1 In the beginning ..." a line; a new chapter begins when what stands before the colon changes.
bible -f gen1:1-rev22:21 </dev/null |
    awk '{ split($1, at, ":"); if (NR > 1 && at[1] != last) print "\f"; last = at[1]; print }' |
    rows "$out/bible.train.jsonl" "$out/eval.jsonl"

# An entry begins with a line "   :name: ..."; minimal images leave documentation out, the package still has it.
jargon=/usr/share/doc/jargon-text/jargon.txt.gz
if [ ! -s $jargon ]; then
    rm -rf "$out/package"
    mkdir "$out/package"
    # As root apt would warn that its own user cannot write here.
    (cd "$out/package" && apt-get download -qq -o APT::Sandbox::User=root jargon-text && dpkg-deb -x jargon-text_*.deb .) || {
        echo "prepare.sh: this machine leaves out documentation, and the package jargon-text cannot be fetched;" \
            "run apt-get update, then this again" >&2
        exit 1
    }
    jargon=$out/package$jargon
fi
gzip -dc "$jargon" |
    awk '/^   :[^:]+:/ { print "\f"; on = 1 } on { sub(/^   /, ""); print }' |
    rows "$out/jargon.train.jsonl" "$out/jargon.eval.jsonl"
cat "$out/bible.train.jsonl" "$out/jargon.train.jsonl" > "$out/train.jsonl"
# What the tokenizer learns from: the training texts as text.
sed -e 's/^{"text": "//' -e 's/"}$//' -e 's/\\n/\n/g' -e 's/\\"/"/g' -e 's/\\\\/\\/g' "$out/train.jsonl" > "$out/train.tmp"
mv "$out/train.tmp" "$out/train.txt"
rm -rf "$out/package"
