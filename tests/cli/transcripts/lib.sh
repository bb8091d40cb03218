# Read by the shell of every transcript (transcript_test.cpp).

# safetensors FILE HEADER BYTES: a file with this JSON header and so many zeros of data.
safetensors() {
    _size=${#2}
    {
        for _shift in 0 8 16 24 32 40 48 56; do printf "\\$(printf %03o $((_size >> _shift & 255)))"; done
        printf %s "$2"
        head -c "$3" /dev/zero
    } >"$1"
}

# bf16 NAME ROWS COLS BEGIN END: one entry of a header.
bf16() { printf '"%s":{"dtype":"BF16","shape":[%s,%s],"data_offsets":[%s,%s]}' "$@"; }

# poke FILE OFFSET ESCAPES: overwrites bytes, e.g. poke f 100 '\300\177'.
poke() { printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }

# llama FOLDER: an empty folder with the config.json of a small Llama.
llama() {
    mkdir -p "$1"
    printf '{"architectures":["LlamaForCausalLM"],"model_type":"llama","torch_dtype":"bfloat16","hidden_size":64,"num_hidden_layers":1}\n' >"$1/config.json"
}

# data FILE: where the data of a safetensors file begins.
data() { echo $((8 + $(od -An -tu8 -N8 "$1"))); }
