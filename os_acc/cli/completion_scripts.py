# SPDX-License-Identifier: Apache-2.0
"""What os-acc complete prints: how each shell asks for candidates.

Each script gives os-acc complete words the words of the line up to the
cursor, one per line, and gets the candidates for the last one, each with a
tab and a text.
"""

# Bash splits words at ":", which is in the addresses of PCI functions. So the
# line is split at blanks here, and what bash has before the last ":" is
# removed from the candidates. Bash inserts a candidate as it is, so it is
# quoted: the name of an instance may be any text, such as "x; reboot".
BASH = r"""# Completion of os-acc for bash.
_os_acc() {
    local line=${COMP_LINE:0:COMP_POINT} IFS=$' \t\n'
    local -a words
    read -r -a words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=('')
    local current=${words[${#words[@]} - 1]} name text
    local before=${current%"${current##*[:=]}"}
    COMPREPLY=()
    while IFS=$'\t' read -r name text; do
        name=${name#"$before"}
        [[ -n $name ]] && printf -v name %q "$name"
        COMPREPLY+=("$name")
    done < <(printf '%s\n' "${words[@]}" | os-acc complete words 2> /dev/null)
}
complete -o default -F _os_acc os-acc
"""

ZSH = r"""#compdef os-acc
# Completion of os-acc for zsh.
_os_acc() {
    local -a found
    local name text
    while IFS=$'\t' read -r name text; do
        found+=("${name//:/\\:}:$text")
    done < <(print -rl -- "${(@)words[1,CURRENT]}" \
        | os-acc complete words 2> /dev/null)
    if (( $#found )); then
        _describe 'os-acc' found
    else
        # The file may be the value in --option=value.
        compset -P '--[^=]#='
        _files
    fi
}
if [[ $funcstack[1] == _os_acc ]]; then
    _os_acc "$@"
else
    compdef _os_acc os-acc
fi
"""

FISH = r"""# Completion of os-acc for fish.
function __os_acc_complete
    set -l found (begin
        commandline -opc
        commandline -ct
    end | os-acc complete words 2> /dev/null)
    if set -q found[1]
        printf '%s\n' $found
    else
        # The file may be the value in --option=value.
        set -l current (commandline -ct)
        set -l option (string match -r -- '^--[^=]*=' "$current")
        printf '%s\n' "$option"(__fish_complete_path \
            (string replace -- "$option" '' "$current"))
    end
end
complete -c os-acc -f -a '(__os_acc_complete)'
"""

SCRIPTS = {'bash': BASH, 'zsh': ZSH, 'fish': FISH}
