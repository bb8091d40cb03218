# Types the beginning of a command line into a zsh, presses TAB, and compares the completed line.
#   zsh -f zsh_completion.zsh FOLDER_OF__nibble
zmodload zsh/zpty || exit 2
functions_folder=$1
typeset -i failures=0

expect() {  # typed text, completed text
    zpty -d shell 2>/dev/null
    zpty shell "TERM=dumb zsh -f -i"
    zpty -w shell "PS1= PROMPT= RPROMPT=; unsetopt zle_bracketed_paste prompt_cr prompt_sp; fpath=($functions_folder \$fpath)"
    zpty -w shell "autoload -Uz compinit; compinit -u -D; LISTMAX=0"
    # The widget prints the completed line between two marks.
    zpty -w shell 'show() { zle complete-word; print -r -- "<<<$BUFFER>>>" }; zle -N show; bindkey "^X" show; print ready-$((40+2))'
    local text line
    while zpty -r shell line; do text+=$line; [[ $line == *ready-42* ]] && break; done
    zpty -w -n shell "$1"$'\C-X'
    text=
    while zpty -r shell line; do text+=$line; [[ $text == *'<<<'*'>>>'* ]] && break; done
    zpty -d shell
    local seen=${${text##*<<<}%%>>>*}
    [[ ${seen%% } == $2 ]] || { print -u2 "zsh completes \"$1\" to \"$seen\", not \"$2\""; failures+=1; }
}

expect "nibble quan" "nibble quantize"
expect "nibble bench matm" "nibble bench matmul"
expect "nibble quantize --form" "nibble quantize --format"
expect "nibble quantize src --format g" "nibble quantize src --format gguf"
expect "nibble help quan" "nibble help quantize"
exit $(( failures > 0 ))
